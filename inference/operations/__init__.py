"""What clients can ask for. `operation.py` says what an operation is and how to add one."""
