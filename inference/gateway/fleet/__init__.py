"""The engines connected to a gateway: their links, and the frames that pass in both directions."""
