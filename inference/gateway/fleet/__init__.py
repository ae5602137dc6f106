"""The engines of a gateway: their links, what they say, and what they are told."""
