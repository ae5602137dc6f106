"""Transfers: uploads in parts that resume where they broke off, and downloads from a hub."""
