"""What of `/v1` the console's process answers, and what its document says of all of it."""
