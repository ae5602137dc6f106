"""What a gateway records of its requests: metrics, outcomes, and content that tenants keep."""
