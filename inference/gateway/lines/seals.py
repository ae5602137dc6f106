"""Proof that the holder of a key made a batch.

A console seals a batch when its key's holder makes it, with a secret that workers don't have;
gateways run a line only of a batch whose seal is right. So a worker, which reads what strangers
upload, can ask for nothing in the name of a key that has made no batch.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Protocol


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


def line_id(batch_id: str, number: int, created_at: float) -> str:
    """The request id of a line, from 1: the same whenever and wherever it is run. As any request's
    it begins with a time, that of the batch (`hub.new_id`)."""
    digest = hashlib.sha256(f"{batch_id} {number}".encode()).hexdigest()
    return f"{int(created_at * 1000):012x}{digest[:20]}"
