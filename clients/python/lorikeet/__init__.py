"""The command line of Lorikeet, for tenants. It shares no code with the server."""
