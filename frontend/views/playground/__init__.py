"""The playground's page, and the conversations and prompts that members save."""
