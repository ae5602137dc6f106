"""Prompts of the playground that a member keeps, for himself or for everybody in the tenant, and
sets of them, over which models are compared.

As of conversations, neither logs nor the audit log ever hold their text.
"""

from __future__ import annotations

from django.db import models

from tenants.models.saved.kept import Shared, SharedQuerySet

MAX_CHARS = 20_000
"""Of a prompt, and of a system prompt."""
MAX_SET = 50
"""Prompts of one set: some minutes of generation."""


class SavedPrompt(Shared):
    """What is said to a model: `{{name}}` in it is a variable, for which one is asked."""

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
    """Texts: MAX_SET of MAX_CHARS at most."""

    objects = SharedQuerySet["PromptSet"].as_manager()

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(fields=["member", "name"], name="prompt_set_once_per_name")
        ]
