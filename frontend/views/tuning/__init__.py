"""A tenant's fine-tuning jobs: the list, starting one, and one with its losses and events."""
