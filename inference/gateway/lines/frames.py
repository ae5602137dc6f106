"""Messages between workers and gateways about batch lines: one msgpack array per message.

A worker opens a batch, asks for lines of it, and is told of each when an engine begins it and when
it has an answer. A line is identified by its batch and its number. It may be asked for again, in a
higher turn, once it was answered or its socket is lost.

Workers and gateways of different releases work together without agreeing on a version: fields may
be appended, with a default, and each end ignores and logs messages whose tag it does not know. So
nothing may depend on whether a new message is understood.
"""

from __future__ import annotations

from typing import Generic, TypeVar, get_args

import msgspec

from inference.link.accounts import Usage
from inference.link.wire import unknown_tag

MAX_UNBEGUN = 64
"""Most lines of one batch at one gateway that no engine has begun."""
MAX_UNBEGUN_BYTES = 4 << 20
"""Most bytes of their bodies, unless there is only one such line."""
SHOWN_TAG = 40
"""Characters of an unknown tag in the log."""
TURNS_OF_A_RUN = 1024
"""More turns than any line takes while one worker has its batch."""


class LineMessage(msgspec.Struct, array_like=True, frozen=True):
    """One websocket message."""


class OpenBatch(LineMessage, tag="open", frozen=True):
    """Worker to gateway: open this batch. `created_at` is a unix time in seconds; `seal` is from
    the console that accepted the batch (`seals`)."""

    batch: str
    key_id: int
    created_at: float
    operation: str
    seal: str


class AskLine(LineMessage, tag="ask", frozen=True):
    """Worker to gateway: answer this line of a batch that was opened."""

    batch: str
    number: int
    turn: int
    body: bytes


class WithdrawBatch(LineMessage, tag="withdraw", frozen=True):
    """Worker to gateway: close this batch. Its lines that no engine has begun are not run; each is
    answered with `again_s`."""

    batch: str


class LineAnswer(msgspec.Struct, array_like=True, frozen=True):
    """What became of a line: an HTTP status and a body, or that it is to be asked for again after
    `again_s` seconds. `sent`: an engine had it, so it must be asked for in a higher turn; `code` is
    the error's, `usage` what is billed."""

    batch: str
    number: int
    status: int
    body: bytes = b""
    again_s: float | None = None
    sent: bool = False
    code: str = ""
    usage: Usage = Usage()


class LineNews(LineMessage, tag="news", frozen=True):
    """Gateway to worker: the lines that engines have begun, and answers."""

    begun: list[tuple[str, int]] = []
    answers: list[LineAnswer] = []


class UnknownMessage(msgspec.Struct, frozen=True):
    """A message of a later release, of which only the tag could be decoded. Never sent."""

    tag: str


ToGateway = OpenBatch | AskLine | WithdrawBatch
T = TypeVar("T")


class Decoder(Generic[T]):
    """Decodes the messages that one end gets."""

    def __init__(self, kind: type[T]) -> None:
        """`kind` is a message type, or a union of them."""
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self._tags = {one.__struct_config__.tag for one in get_args(kind) or (kind,)}

    def decode(self, message: bytes) -> T | UnknownMessage:
        """Decode one message; `UnknownMessage` if it has the form of a message, but an unknown tag.

        Raises:
            msgspec.DecodeError: it is not a message for this end.
        """
        try:
            return self._decoder.decode(message)
        except msgspec.DecodeError:
            if (tag := unknown_tag(message, self._tags)) is None:
                raise
            return UnknownMessage(tag[:SHOWN_TAG])


encode = msgspec.msgpack.Encoder().encode
to_gateway: Decoder[ToGateway] = Decoder(ToGateway)  # type: ignore[arg-type]
to_worker = Decoder(LineNews)
