"""Takes the bytes of an upload in, whole or in parts."""
