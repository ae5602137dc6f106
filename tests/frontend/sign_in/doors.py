"""Every address that the console answers, including allauth's and the API's, from the URL
configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from django.urls.resolvers import RoutePattern

from gateway.urls import ADAPTER

SAMPLES = {
    "int": "1",
    "slug": "acme",
    "str": "sample",
    "path": "sample",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
"""The value used for each path converter."""
MATCHES = {
    r"^(?P<provider_id>[^/]+)/": "sso/",
    "": "no-such-address",
    r"^api(?:/|$)": "api/no-such-address",
    ADAPTER: "hub/acme/support",
    r"^hub(?:/|$)": "hub/no-such-address",
    r"^v1$": "v1",
    r"^confirm-email/(?P<key>[-:\w]+)/$": "confirm-email/sample/",
    r"^password/reset/key/(?P<uidb36>[0-9A-Za-z]+)-(?P<key>.+)/$": "password/reset/key/1-sample/",
}
"""The path used for each regular expression; a new expression has to be added here."""


@dataclass(frozen=True)
class Door:
    name: str
    path: str


def doors() -> list[Door]:
    """All addresses; catch-all patterns, such as an API's last one, with an invented address."""
    return list(_under(get_resolver().url_patterns, "/"))


def _under(patterns: list[Any], prefix: str) -> Iterator[Door]:
    for one in patterns:
        path = prefix + _concrete(one)
        if isinstance(one, URLResolver):
            yield from _under(one.url_patterns, path)
        else:
            yield Door(one.name or path, path)


def _concrete(one: URLPattern | URLResolver) -> str:
    if isinstance(one.pattern, RoutePattern):
        return re.sub(r"<(\w+):\w+>", lambda found: SAMPLES[found[1]], str(one.pattern))
    return MATCHES[str(one.pattern)]
