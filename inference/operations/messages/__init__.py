"""Anthropic's API of messages: its requests as a chat, and a chat's answer as content blocks."""
