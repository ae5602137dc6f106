"""Whose turn it is, wherever requests wait: in front of an engine, or for one. Sans-IO."""
