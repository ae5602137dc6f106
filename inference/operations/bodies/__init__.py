"""Checks of a request body in gateway and agent, before an engine reads it."""
