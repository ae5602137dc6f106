"""Requests and answers that are stored for tenants, only for tenants that chose this."""
