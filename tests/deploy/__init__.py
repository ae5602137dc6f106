"""What is shipped for one machine, and what scales engines on many."""
