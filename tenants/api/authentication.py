"""Authentication of programs by API keys; people use Django's session."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

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
    """`Authorization: Bearer lk_...`; `request.auth` is the ApiKey."""

    def authenticate(self, request: Request) -> tuple[KeyHolder, ApiKey] | None:
        scheme, _, secret = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        now = timezone.now()
        key = ApiKey.objects.find(secret.strip())
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
