"""Which version of a split a request gets: sticky, so that a key's requests have the same one.
In a shadow the stable version gets all of them, and the candidate copies of those of its keys.

A key is hashed together with the split's id to a place from 0 to 1, and is the candidate's if that
is below the weight. So splits are independent of each other, and a key that the candidate has stays
there when the weight grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from inference.interfaces.directory import ResolvedTarget, SplitArm, TrafficSplit

KEY_BYTES = 6
"""48 bits, which JSON has exactly; two of 10,000 keys are the same once in 5 million splits."""
MAX_VALUE_BYTES = 512
"""Of a user's name or a header's value; what is longer counts by its beginning."""


class StickyBy(StrEnum):
    """What the requests that are to get the same version have in common."""

    USER = "user"
    SAFETY_IDENTIFIER = "safety_identifier"
    HEADER = "header"
    CONVERSATION = "conversation"
    """The conversation's id, or the user's first message, which all its requests repeat."""
    REQUEST = "request"
    """Nothing: each request for itself."""


class Arrival(msgspec.Struct, frozen=True):
    """What a request says of whom it is from; empty where it does not. `headers` are by lower-case
    name."""

    request_id: str
    user: str = ""
    safety_identifier: str = ""
    conversation: str = ""
    headers: Mapping[bytes, bytes] = {}

    def value(self, split: TrafficSplit) -> bytes:
        """The value of the split's key; empty if the request lacks it."""
        match split.sticky:
            case StickyBy.USER:
                return self.user[:MAX_VALUE_BYTES].encode()
            case StickyBy.SAFETY_IDENTIFIER:
                return self.safety_identifier[:MAX_VALUE_BYTES].encode()
            case StickyBy.HEADER:
                return self.headers.get(split.header.encode(), b"")
            case StickyBy.CONVERSATION:
                return self.conversation.encode()
        return b""


def choose(target: ResolvedTarget, arrival: Arrival) -> ResolvedTarget:
    """The version that the request gets. Without the key of its split it is chosen for itself."""
    if (split := target.split) is None:
        return target
    value = arrival.value(split)
    key = place(split.id, value or arrival.request_id.encode())
    candidate = 100 * key < split.weight << 8 * KEY_BYTES
    if split.copies_to is not None:
        arm = SplitArm(split.id, False, None, split.weight, split.copies_to)
        return replace(target, split=None, arm=arm if candidate else None)
    return _of_arm(
        target, split, SplitArm(split.id, candidate, key if value else None, split.weight)
    )


def shadow_target(target: ResolvedTarget, split_id: int) -> ResolvedTarget | None:
    """The candidate of the shadow with this id, for a copy of a request; None if it has ended."""
    split = target.split
    if split is None or split.id != split_id or split.copies_to is None:
        return None
    return replace(split.candidate, arm=SplitArm(split.id, True, None, split.weight))


def stay(target: ResolvedTarget, version_id: int | None, arrival: Arrival) -> ResolvedTarget:
    """As `choose`, but the version of this id if the split has it: for a request that has begun."""
    chosen, split = choose(target, arrival), target.split
    if split is None or chosen.arm is None or version_id is None or split.copies_to is not None:
        return chosen
    if version_id not in (target.version_id, split.candidate.version_id):
        return chosen
    is_candidate = version_id == split.candidate.version_id
    return _of_arm(target, split, replace(chosen.arm, candidate=is_candidate))


def place(split_id: int, value: bytes) -> int:
    """The key's number, below 2 ** (8 * KEY_BYTES)."""
    salt = split_id.to_bytes(blake2b.SALT_SIZE, "big")
    digest = blake2b(value[:MAX_VALUE_BYTES], digest_size=KEY_BYTES, salt=salt).digest()
    return int.from_bytes(digest, "big")


def _of_arm(target: ResolvedTarget, split: TrafficSplit, arm: SplitArm) -> ResolvedTarget:
    return replace(split.candidate if arm.candidate else target, split=None, arm=arm)
