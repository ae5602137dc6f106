"""What people see: the console."""
