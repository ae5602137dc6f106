"""A tenant leaves: everything that it has in one archive."""
