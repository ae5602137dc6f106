"""The endpoints of the management API: one module or folder for each kind of object."""
