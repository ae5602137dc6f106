"""A tenant's start page, and the health strip that the installation's has as well."""
