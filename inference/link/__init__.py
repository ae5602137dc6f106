"""The engine link: the frames between an agent and a gateway, and what may be said when."""
