"""Which engine gets a request: what each engine can do, what it holds, and the choice itself."""
