"""The JSON messages between a page and its live socket, after the ticket.

The page chooses the ids of its subscriptions; they are local to its socket. `seq` is opaque to the
page: when it reconnects, it sends the last one it got as `after`, and is told what it has missed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from frontend.sockets.messages import Ping, SocketMessage
from inference.errors import InvalidRequest

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=16)]
Words = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00]*$")]


class Watch(SocketMessage, tag="watch"):
    """Page to socket: subscribe to this topic."""

    id: Id
    topic: Words
    after: Words = ""


class Unwatch(SocketMessage, tag="unwatch"):
    """Page to socket: unsubscribe."""

    id: Id


class PageNews(SocketMessage, tag="news"):
    """Socket to page: what is new. The form of `data` depends on the kind of topic (`feeds`)."""

    id: str
    seq: str
    data: msgspec.Raw


class NotWatched(SocketMessage, tag="refused"):
    """Socket to page: there is no such topic for this person, or the page watches too many."""

    id: str


FromPage = Watch | Unwatch | Ping
_decoder: msgspec.json.Decoder[FromPage] = msgspec.json.Decoder(FromPage)


def decode(text: str | bytes) -> FromPage:
    """Decode a message from the page.

    Raises:
        InvalidRequest: it is not a valid message.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Not a message of a live page: {error}.") from None
