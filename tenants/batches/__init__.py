"""Batches: workers read them, run them and write their output files."""
