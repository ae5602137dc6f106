"""Signing in: accounts, single sign-on, second factors, sessions, throttling."""
