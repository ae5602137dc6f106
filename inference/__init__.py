"""From an authenticated request to tokens: the HTTP edge, the engine link and the engine agent.

Nothing here imports Django, so that the agent starts without it.
"""
