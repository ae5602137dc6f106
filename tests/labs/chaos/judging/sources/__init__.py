"""Where the facts of a run are from: clients, logs, journals, recorders and PostgreSQL."""
