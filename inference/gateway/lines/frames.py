"""What workers and gateways say to each other of batches' lines: one msgpack array per message.

A worker opens a batch, asks for lines of it and hears of each when an engine has begun with it and
when it has an answer. A line is named by its batch and its number, and may be asked for again, in a
higher turn, once it was answered or its socket is lost. Fields may be appended, with a default.
"""

from __future__ import annotations

import msgspec

from inference.link.wire import Usage

MAX_UNBEGUN = 64
"""Lines of one batch at one gateway, with which no engine has begun."""
MAX_UNBEGUN_BYTES = 4 << 20
"""Of their bodies, unless there is but one."""
TURNS_OF_A_RUN = 1024
"""More than a line is sent to engines by one worker that has its batch."""


class Message(msgspec.Struct, array_like=True, frozen=True):
    """One websocket message."""


class Open(Message, tag="open", frozen=True):
    """Worker to gateway: there is this batch. `created_at` is a unix time in seconds, `seal` that
    of the console which took it (`seals`)."""

    batch: str
    key_id: int
    created_at: float
    operation: str
    seal: str


class Ask(Message, tag="ask", frozen=True):
    """Worker to gateway: answer this line of a batch that was opened."""

    batch: str
    number: int
    turn: int
    body: bytes


class Withdraw(Message, tag="withdraw", frozen=True):
    """Worker to gateway: answer no line of this batch with which no engine has begun; each is
    answered as `again`. The batch is closed."""

    batch: str


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """What became of a line: a status of HTTP and a body, or that it is to be asked for `again_s`
    seconds later. `sent`: an engine had it, so the next time must be of a higher turn; `code` is
    the error's, `usage` what is billed."""

    batch: str
    number: int
    status: int
    body: bytes = b""
    again_s: float | None = None
    sent: bool = False
    code: str = ""
    usage: Usage = Usage()


class News(Message, tag="news", frozen=True):
    """Gateway to worker: engines have begun with these lines, and these have answers."""

    begun: list[tuple[str, int]] = []
    answers: list[Answer] = []


ToGateway = Open | Ask | Withdraw

encode = msgspec.msgpack.Encoder().encode
to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)
to_worker = msgspec.msgpack.Decoder(News)
