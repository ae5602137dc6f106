"""A tenant's start page, and the health strip, which the installation's start page also has."""
