"""The pages of requests: the list, and one."""
