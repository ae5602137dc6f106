"""Ids of batches and their lines, and seals that prove that a key's holder created a batch.

A console seals a batch when it is created with a key, with a secret that workers don't have; a
gateway seals a background response the same way. Gateways run only lines of batches with a valid
seal. So a worker, which parses untrusted uploads, can request nothing in the name of a key that has
created no batch.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import Protocol

PREFIX = "batch_"
BACKGROUND = "background_"
"""Prefix for a background response, which is sealed as a batch of one line."""
NUMBER_DIGITS = 8


class SealedBatch(Protocol):
    """The sealed fields of a batch; `created_at` is a unix time in seconds."""

    @property
    def batch(self) -> str: ...
    @property
    def key_id(self) -> int: ...
    @property
    def created_at(self) -> float: ...
    @property
    def operation(self) -> str: ...


def seal(secret: str, batch: SealedBatch) -> str:
    """The seal of this batch."""
    key = hmac.digest(secret.encode(), b"lorikeet: batches", "sha256")
    text = f"{batch.batch} {batch.key_id} {batch.created_at!r} {batch.operation}"
    return hmac.digest(key, text.encode(), "sha256").hex()


def holds(secret: str, batch: SealedBatch, given: str) -> bool:
    """Whether `given` is the batch's seal; compared in constant time."""
    return hmac.compare_digest(given.encode(), seal(secret, batch).encode())


def new_batch_id() -> str:
    """A batch id: like a request id (`ids.new_id`) it begins with the time; it ends with 48 random
    bits."""
    return f"{PREFIX}{time.time_ns() // 1_000_000:012x}{secrets.token_hex(6)}"


def background_id(request_id: str) -> str:
    """The batch id of a background response; it begins like the id of the request for it."""
    return f"{BACKGROUND}{request_id[:-NUMBER_DIGITS]}"


def line_id(batch_id: str, number: int) -> str:
    """The request id of a line, numbered from 1: the same whenever and wherever it is run."""
    return f"{batch_id.rpartition('_')[2]}{number:0{NUMBER_DIGITS}x}"


def batch_of(line_id: str) -> str:
    """The batch id of the line with this request id. For any other request id the result names no
    batch."""
    return f"{PREFIX}{line_id[:-NUMBER_DIGITS]}"


def number_of(line_id: str) -> int:
    """The line's number in its batch."""
    return int(line_id[-NUMBER_DIGITS:], 16)
