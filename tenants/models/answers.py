"""Answers kept for their idempotency key, so that the same request is generated and billed once."""

from __future__ import annotations

from django.db import models

from tenants.models.keys import ApiKey


class IdempotentAnswer(models.Model):
    """One idempotency key of an API key: claimed while its request runs, then its whole answer.

    The claim of a gateway that died ends at `claimed_until`, after which the next request takes it
    over; or earlier, if an engine still runs the request, in the request's next `turn`.
    `answer` holds the body as it was sent, streams included; null while the request runs.
    """

    key = models.ForeignKey(ApiKey, models.CASCADE, related_name="answers", db_index=False)
    name = models.CharField(max_length=255, help_text="The Idempotency-Key header.")
    body_digest = models.BinaryField(max_length=32, help_text="SHA-256 of path and body.")
    request_id = models.CharField(max_length=64)
    turn = models.IntegerField(default=1, db_default=1)
    """How many gateways have handled the request."""
    claimed_until = models.DateTimeField()
    content_type = models.CharField(max_length=100, blank=True)
    answer = models.BinaryField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-created_at"]
        constraints = [models.UniqueConstraint(fields=["key", "name"], name="answer_unique")]
        indexes = [models.Index(fields=["created_at"], name="answer_by_age")]

    def __str__(self) -> str:
        return self.name
