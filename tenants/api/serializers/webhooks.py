"""Serializers of the management API for webhooks and deliveries."""

from __future__ import annotations

from django.conf import settings
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from tenants.api.serializers.strict import Creator, StrictMixin
from tenants.models.notifications import (
    OF_INSTALLATION,
    OF_TENANTS,
    Delivery,
    DeliveryState,
    NotificationKind,
    Target,
)
from tenants.notifications.addresses import MAX_URL, Forbidden, check_form

TENANT_EVENTS = [(kind.value, kind.label) for kind in OF_TENANTS]
INSTALLATION_EVENTS = [(kind.value, kind.label) for kind in OF_INSTALLATION]


def _events(choices: list[tuple[str, str]]) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.ChoiceField(choices=choices),
        source="kinds",
        allow_empty=False,
        min_length=1,
        max_length=len(NotificationKind),
        help_text="Events that are sent to the webhook.",
    )


class WebhookSerializer(StrictMixin, serializers.ModelSerializer[Target]):
    """A tenant's webhook without its secret, which cannot be shown again."""

    url = serializers.CharField(max_length=MAX_URL, help_text="An `https://` URL of a public host.")
    events = _events(TENANT_EVENTS)
    created_by = Creator()

    class Meta:
        model = Target
        fields = ["id", "url", "events", "created_by", "created_at", "rotated_at", "ended_at"]
        read_only_fields = ["created_at", "rotated_at", "ended_at"]
        extra_kwargs = {
            "ended_at": {
                "help_text": "When the webhook answered 410. Nothing has been sent to it since."
            },
            "rotated_at": {"help_text": "When the secret was last rotated."},
        }

    def validate_url(self, url: str) -> str:
        try:
            check_form(url, private=settings.WEBHOOKS_PRIVATE)
        except Forbidden as error:
            raise ValidationError(str(error)) from error
        return url

    def validate_events(self, events: list[str]) -> list[str]:
        return sorted(set(events))


class InstallationWebhookSerializer(WebhookSerializer):
    """A webhook of the whole installation."""

    events = _events(INSTALLATION_EVENTS)


SECRET = "Secret that signs deliveries, as defined by Standard Webhooks. It is shown only once."


class NewWebhookSerializer(WebhookSerializer):
    """A webhook with its secret, which is shown only once."""

    secret = serializers.CharField(read_only=True, help_text=SECRET)

    class Meta(WebhookSerializer.Meta):
        fields = [*WebhookSerializer.Meta.fields, "secret"]


class NewInstallationWebhookSerializer(InstallationWebhookSerializer):
    """A webhook of the whole installation with its secret, which is shown only once."""

    secret = serializers.CharField(read_only=True, help_text=SECRET)

    class Meta(InstallationWebhookSerializer.Meta):
        fields = [*InstallationWebhookSerializer.Meta.fields, "secret"]


class DeliverySerializer(serializers.ModelSerializer[Delivery]):
    """The delivery of one event to one webhook, and its state."""

    webhook = serializers.IntegerField(
        source="target_id", read_only=True, help_text="Id of the webhook."
    )
    event = serializers.ChoiceField(source="notification.kind", choices=NotificationKind.choices)
    message_id = serializers.CharField(
        source="notification.message_id",
        read_only=True,
        help_text=(
            "The header `webhook-id`, equal in all attempts, by which a receiver "
            "recognises repeated deliveries."
        ),
    )
    data = serializers.JSONField(source="notification.data")  # type: ignore[assignment]
    happened_at = serializers.DateTimeField(source="notification.at")
    state = serializers.ChoiceField(choices=DeliveryState.choices)

    class Meta:
        model = Delivery
        fields = [
            "id", "webhook", "event", "message_id", "data", "happened_at", "state", "attempts",
            "tried_at", "due_at", "status", "error", "duration_ms",
        ]  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {
            "due_at": {"help_text": "Time of the next attempt while the state is `waiting`."},
            "status": {"help_text": "HTTP status of the last answer. null: there was none."},
            "error": {"help_text": "Why the last attempt failed. Empty: it did not."},
            "duration_ms": {"help_text": "How long the last attempt took."},
        }
