"""The engine agent: one process that embeds one engine and serves it to every gateway."""
