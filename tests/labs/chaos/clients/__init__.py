"""The clients of a chaos run: requests, batches and responses in the background."""
