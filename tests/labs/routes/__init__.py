"""What routes save at equal quality, and how often a useless one is turned on: simulated."""
