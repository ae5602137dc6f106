"""What must hold after a chaos run, and the sources that are compared for it."""
