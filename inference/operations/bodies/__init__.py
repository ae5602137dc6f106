"""What gateway and agent read of a body before an engine does."""
