"""The messages that all sockets of pages have."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, tag_field="type"):
    """Any message; `type` says which."""


class Ping(Message, tag="ping"):
    """Page to socket: heartbeat."""


class Pong(Message, tag="pong"):
    """Socket to page: answer to a ping."""
