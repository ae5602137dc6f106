"""What reads a tenant's dialogues and trains on them, in child processes: no Django, no database,
no secrets."""
