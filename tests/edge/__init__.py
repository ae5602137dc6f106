"""What stands before both planes, attacked with bare sockets."""
