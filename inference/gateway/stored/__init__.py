"""Responses and conversations that are stored for tenants, only for tenants that chose this."""
