"""What a page and its live socket tell each other, as JSON, once its ticket was taken.

The page numbers its watches; the numbers mean something only on its socket. `seq` is opaque to it:
it shows the last one that it has as `after` when it comes back, and is told what it lacks.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from frontend.sockets import Message, Ping
from inference.errors import InvalidRequest

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=16)]
Words = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00]*$")]


class Watch(Message, tag="watch"):
    """Page to socket: tell me of this topic."""

    id: Id
    topic: Words
    after: Words = ""


class Unwatch(Message, tag="unwatch"):
    """Page to socket: no longer."""

    id: Id


class News(Message, tag="news"):
    """Socket to page: what is new. What `data` holds depends on the kind of topic (`feeds`)."""

    id: str
    seq: str
    data: msgspec.Raw


class NotWatched(Message, tag="refused"):
    """Socket to page: there is no such topic for this person, or he watches too many."""

    id: str


FromPage = Watch | Unwatch | Ping
_decoder: msgspec.json.Decoder[FromPage] = msgspec.json.Decoder(FromPage)


def decode(text: str | bytes) -> FromPage:
    """Read a message of the page's.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Not a message of a live page: {error}.") from None
