"""The Django project: settings, URLs, ASGI and the commands. Wiring only."""
