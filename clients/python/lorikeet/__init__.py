"""Lorikeet's command-line client for tenants. It shares no code with the server."""

__version__ = "0.1.0"
