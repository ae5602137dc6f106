"""What operators manage: engines and their credentials, pools and their revisions, rollouts."""
