"""A fleet in one process: simulated engines and clients around the real routing."""
