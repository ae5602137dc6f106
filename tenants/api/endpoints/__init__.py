"""The addresses of the management API, one module for each kind of thing."""
