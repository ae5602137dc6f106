"""The checks of a run, each on facts alone."""
