"""A tenant's batches, and the files that it keeps for them and more."""
