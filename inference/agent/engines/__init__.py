"""The engines that an agent can embed: vLLM, and a synthetic one for tests."""
