"""Tenants' files: received by consoles, stored on a disk that consoles and workers share."""
