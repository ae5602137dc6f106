"""What serves: engines and their credentials, revisions and rollouts."""
