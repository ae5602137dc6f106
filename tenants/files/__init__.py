"""Tenants' files: received by consoles, kept on a disk that consoles and workers share."""
