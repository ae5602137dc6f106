"""Lorikeet's command-line client for tenants. It shares no code with the server."""
