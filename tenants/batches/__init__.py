"""Batches: read, run and written down by workers."""
