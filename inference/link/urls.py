"""URLs of gateways' websockets, for processes that dial in: engines' agents and workers."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def socket_url(gateway: str, path: str) -> str:
    """The URL of the websocket at this path, such as `/ws/engine`, of the gateway whose base URL,
    with http or https, is `gateway`."""
    parts = urlsplit(gateway)
    scheme = {"http": "ws", "https": "wss"}[parts.scheme]
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + path, "", ""))
