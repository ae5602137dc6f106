"""How vLLM runs each operation."""
