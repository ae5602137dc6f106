"""What tenants have kept of what they ask and are answered: only where they chose to."""
