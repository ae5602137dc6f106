"""From an authenticated request to tokens: the HTTP edge, the engine link and the engine agent.

Everything here except `views` and `sockets` is free of Django, so that the agent starts without it.
"""
