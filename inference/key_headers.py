"""Finds the API key in a request's headers, for gateways and consoles."""

from __future__ import annotations

from collections.abc import Iterable

from inference.errors import InvalidApiKey

KEY_HEADERS = (b"api-key", b"x-api-key")
"""Headers in which clients of other APIs send their key, besides `Authorization`."""

Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case, with values, as in ASGI."""


def shows_key(headers: Headers) -> bool:
    """Whether at least one header has an API key."""
    return any(_key_in(name, value) for name, value in headers)


def api_key(headers: Headers) -> str:
    """The API key, from any of the headers that may have it.

    Raises:
        InvalidApiKey: no header has one, or headers have different ones.
    """
    found = {key for name, value in headers if (key := _key_in(name, value))}
    if not found:
        raise InvalidApiKey(
            "You didn't provide an API key: send it as `Authorization: Bearer lk_...`."
        )
    if len(found) > 1:
        raise InvalidApiKey(
            "The headers of this request have different API keys: send one, as "
            "`Authorization: Bearer lk_...`."
        )
    return found.pop().decode("latin-1")


def _key_in(name: bytes, value: bytes) -> bytes:
    """The API key in a header; empty if there is none."""
    if name == b"authorization":
        scheme, _, secret = value.strip().partition(b" ")
        return secret.strip() if scheme.lower() == b"bearer" else b""
    return value.strip() if name in KEY_HEADERS else b""
