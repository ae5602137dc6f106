"""Which request goes next to the engine, and which adapter gets a slot. Sans-IO."""
