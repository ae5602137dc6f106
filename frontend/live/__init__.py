"""Live updates of open pages: gateways tell them that something changed, and they ask the console
for the new content."""
