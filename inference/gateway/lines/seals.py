"""What names a batch and its lines, and the proof that the holder of a key made it.

A console seals a batch when its key's holder makes it, with a secret that workers don't have, and a
gateway a response that is to run in the background. Gateways run a line only of a batch whose seal
is right. So a worker, which reads what strangers upload, can ask for nothing in the name of a key
that has made no batch.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Protocol

PREFIX = "batch_"
BACKGROUND = "background_"
"""Of what is sealed of a response that runs in the background: a batch of one line."""
NUMBER_DIGITS = 8


class Batch(Protocol):
    """What is sealed of a batch; `created_at` is a unix time in seconds."""

    @property
    def batch(self) -> str: ...
    @property
    def key_id(self) -> int: ...
    @property
    def created_at(self) -> float: ...
    @property
    def operation(self) -> str: ...


def seal(secret: str, batch: Batch) -> str:
    """That of this batch."""
    key = hmac.digest(secret.encode(), b"lorikeet: batches", "sha256")
    told = f"{batch.batch} {batch.key_id} {batch.created_at!r} {batch.operation}"
    return hmac.digest(key, told.encode(), "sha256").hex()


def holds(secret: str, batch: Batch, given: str) -> bool:
    """Whether this is its seal; in constant time."""
    return hmac.compare_digest(given.encode(), seal(secret, batch).encode())


def new_batch_id() -> str:
    """As a request's (`hub.new_id`) it begins with the time, and ends with 48 random bits."""
    return f"{PREFIX}{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


def background_id(request_id: str) -> str:
    """A new id for a response that is asked for in the request of this id, and begins like it."""
    return f"{BACKGROUND}{request_id[:-NUMBER_DIGITS]}"


def line_id(batch_id: str, number: int) -> str:
    """The request id of a line, from 1: the same whenever and wherever it is run."""
    return f"{batch_id.rpartition('_')[2]}{number:0{NUMBER_DIGITS}x}"


def batch_of(line_id: str) -> str:
    """The batch of the line with this request id; that of no line is no batch's."""
    return f"{PREFIX}{line_id[:-NUMBER_DIGITS]}"


def number_of(line_id: str) -> int:
    """Its number in the batch."""
    return int(line_id[-NUMBER_DIGITS:], 16)
