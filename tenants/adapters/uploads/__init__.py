"""Receives uploads, whole or in parts."""
