"""Filters of the list of requests that a member saves under a name."""

from __future__ import annotations

from django.db import models

from tenants.models.saved.kept import KeptQuerySet, SavedByMember

MAX_QUERY = 1000


class SavedView(SavedByMember):
    """`query` is the query string of the list's URL."""

    most = 30
    query = models.CharField(max_length=MAX_QUERY)

    objects = KeptQuerySet["SavedView"].as_manager()

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["member", "name"], name="saved_view_once_per_name")
        ]
