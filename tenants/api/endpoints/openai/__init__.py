"""The addresses that OpenAI has as well: batches, files, uploads in parts, usage."""
