"""Prompts of the playground that a member saves, privately or for everybody in the tenant, and sets
of them, on which models are compared.

As with conversations, neither logs nor the audit log ever contain their text.
"""

from __future__ import annotations

from django.db import models

from tenants.models.saved.kept import Shared, SharedQuerySet

MAX_CHARS = 20_000
"""Length of a prompt, and of a system prompt."""
MAX_SET = 50
"""At most how many prompts a set has: some minutes of generation."""


class SavedPrompt(Shared):
    """A prompt. `{{name}}` in it is a variable, for whose value the user is asked."""

    most = 100
    text = models.TextField(max_length=MAX_CHARS)
    system = models.TextField(max_length=MAX_CHARS, blank=True)

    objects = SharedQuerySet["SavedPrompt"].as_manager()

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(fields=["member", "name"], name="saved_prompt_once_per_name")
        ]


class PromptSet(Shared):
    """Prompts that models are asked one after another; each is a conversation by itself."""

    most = 50
    prompts = models.JSONField()
    """Texts: at most MAX_SET, each of at most MAX_CHARS."""

    objects = SharedQuerySet["PromptSet"].as_manager()

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(fields=["member", "name"], name="prompt_set_once_per_name")
        ]
