"""What the token path needs of the platform, as protocols that `tenants` implements."""
