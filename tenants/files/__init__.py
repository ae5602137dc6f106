"""Tenants' files: received and stored by consoles, read and written by workers."""
