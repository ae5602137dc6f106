"""The addresses of the management API: a module or a folder for each kind of thing."""
