"""The engine link: the frames between an agent and a gateway, and when each may be sent."""
