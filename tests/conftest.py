"""Fixtures and settings that every test may use."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Nothing is timed: on a busy machine an example may take as long as it likes.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
