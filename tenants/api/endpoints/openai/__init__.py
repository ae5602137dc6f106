"""The endpoints of OpenAI's API: batches, files, uploads in parts, usage."""
