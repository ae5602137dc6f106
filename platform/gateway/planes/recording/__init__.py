"""What a gateway writes to PostgreSQL of its requests: outcomes, traffic and content."""
