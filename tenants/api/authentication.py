"""Authentication of programs by API keys; people use Django's session."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from inference.errors import InvalidApiKey
from inference.key_headers import api_key, shows_key
from tenants.models import ApiKey
from tenants.models.audit import act_as, actor_of
from tenants.naming import TOUCH_INTERVAL


@dataclass(frozen=True)
class KeyHolder:
    """`request.user` of a request with a key, which stands for no user account."""

    key: ApiKey
    is_authenticated: bool = True
    is_active: bool = True
    is_anonymous: bool = False
    is_staff: bool = False
    pk: None = None


class ApiKeyAuthentication(BaseAuthentication):
    """By the headers of `inference.key_headers`; `request.auth` is the ApiKey."""

    def authenticate(self, request: Request) -> tuple[KeyHolder, ApiKey] | None:
        headers = raw_headers(request._request)
        if not shows_key(headers):
            return None
        try:
            secret = api_key(headers)
        except InvalidApiKey as error:
            raise AuthenticationFailed(error.message, error.code) from None
        now = timezone.now()
        key = ApiKey.objects.find(secret)
        if key is None:
            raise AuthenticationFailed("Incorrect API key provided.", "invalid_api_key")
        if not key.usable(now):
            raise AuthenticationFailed(
                "This API key is revoked or expired, or its tenant is suspended.",
                "invalid_api_key",
            )
        if key.last_used_at is None or key.last_used_at <= now - TOUCH_INTERVAL:
            ApiKey.objects.filter(pk=key.pk).touch(now)
        if request.method not in SAFE_METHODS:
            act_as(actor_of(request._request, key))
        return KeyHolder(key), key

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def raw_headers(request: HttpRequest) -> list[tuple[bytes, bytes]]:
    """The request's headers as in ASGI."""
    return [
        (name.lower().encode(), value.encode("latin-1", "replace"))
        for name, value in request.headers.items()
    ]
