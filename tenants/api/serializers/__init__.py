"""Serializers of the management API."""
