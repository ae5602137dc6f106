"""What the operator has: engines and their credentials, pools and their revisions, rollouts."""
