"""The measured servers: Lorikeet as in production, Lorikeet without metering, and its peers."""
