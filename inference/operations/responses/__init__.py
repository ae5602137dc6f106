"""OpenAI's Responses API: its items as the messages of a chat, and a chat's answer as items."""
