"""Files and batches."""
