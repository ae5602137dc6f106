"""The messages that all sockets of pages have."""

from __future__ import annotations

import msgspec


class SocketMessage(msgspec.Struct, tag_field="type"):
    """Any message; `type` says which."""


class Ping(SocketMessage, tag="ping"):
    """Page to socket: heartbeat."""


class Pong(SocketMessage, tag="pong"):
    """Socket to page: answer to a ping."""
