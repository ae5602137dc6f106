"""The pages of adapters and their versions."""
