"""Adapters and their versions, and the uploads that they come from."""
