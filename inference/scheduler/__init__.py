"""Fair order of waiting requests, both in front of an engine and for one. Sans-IO."""
