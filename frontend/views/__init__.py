"""The console's pages: a module each, or a folder where several belong together."""
