"""vLLM behind the engine interface; the only modules that import it."""
