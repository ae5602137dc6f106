"""What agents report of warm prefixes, and how gateways choose engines by it."""
