"""What a member saves in the console: conversations, prompts, filters."""
