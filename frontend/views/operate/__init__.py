"""The operator's pages: the whole installation, one module each."""
