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
            key = ApiKey.objects.authenticate(api_key(headers), timezone.now())
        except InvalidApiKey as error:
            raise AuthenticationFailed(error.message, error.code) from None
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
