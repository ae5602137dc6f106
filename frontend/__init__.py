"""The console: the web pages."""
