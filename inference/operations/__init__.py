"""What a client can ask for: how a body is read and an answer framed, as OpenAI has it."""
