"""The playground's page, and the conversations and prompts that members keep of it."""
