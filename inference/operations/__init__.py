"""The operations that clients can call. `operation.py` says what one is and how to add one."""
