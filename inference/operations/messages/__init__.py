"""Anthropic's Messages API: its requests as chats, and a chat's answer as content blocks."""
