"""Adapter files: fetched, checked and kept on disk, loaded on the engine, evicted."""
