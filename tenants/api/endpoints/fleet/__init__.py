"""Engines and their credentials, base models, revisions and rollouts."""
