"""Which engine gets a request: what an engine can do and holds, and who goes where."""
