"""Resolves API keys and model names from memory, and records what gateways observe."""
