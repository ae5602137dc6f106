"""What open pages are told: that something has changed. What it is now they ask the console."""
