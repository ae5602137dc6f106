"""Adapters, their versions, and uploads of versions."""
