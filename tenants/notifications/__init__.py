"""Notifications: what they are sent for, and their delivery by webhook and email."""
