"""What `manage.py up` runs on one machine: a database, the processes, and the demo's tenants."""
