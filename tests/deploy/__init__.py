"""Tests of the files shipped for deployment, and of what scales engines on many machines."""
