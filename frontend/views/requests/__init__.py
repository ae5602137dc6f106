"""The pages of requests: the list, and a single request."""
