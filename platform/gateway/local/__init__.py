"""The parts of `manage.py up`: an embedded database, the processes, and the demo's tenants."""
