"""Notifications: what is watched for, and how webhooks are sent them."""
