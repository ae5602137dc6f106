"""What a member keeps in the console: conversations, prompts, filters."""
