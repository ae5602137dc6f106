"""The beginnings of a prompt, by which gateways find engines that hold them in their cache."""

from __future__ import annotations

import struct
from collections.abc import Collection

from inference.link.values import Value

HASH_BYTES = 8
"""Size of the hash of a prompt's beginning (`Prefix`)."""


class Prefix(Value, frozen=True):
    """The beginnings of a prompt, shortest first: see `inference.operations.bodies.beginnings`.

    `hashes` has HASH_BYTES for each, keyed by tenant and adapter. `ends` has 4 bytes for each: its
    end, in characters; the last is roughly the end of the prompt. Little-endian.
    """

    hashes: bytes
    ends: bytes

    @classmethod
    def of(cls, hashes: Collection[int], ends: Collection[int]) -> Prefix:
        """From integers; `ends` increase, and there is at least one."""
        return cls(hashes_of(hashes), struct.pack(f"<{len(ends)}I", *ends))

    @property
    def is_sound(self) -> bool:
        """Whether it is well formed; if not, no other method may be called."""
        count, rest = divmod(len(self.ends), 4)
        return count > 0 == rest and len(self.hashes) == HASH_BYTES * count and any(self.ends[-4:])

    def numbers(self) -> tuple[int, ...]:
        """The hashes as integers."""
        return numbers_of(self.hashes)

    def marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The hashes and the ends as integers."""
        return self.numbers(), struct.unpack_from(f"<{len(self.ends) // 4}I", self.ends)

    def tokens(self, prompt_tokens: int) -> list[int]:
        """The number of the prompt's tokens in each beginning, in proportion to its characters."""
        ends = struct.unpack_from(f"<{len(self.ends) // 4}I", self.ends)
        return [prompt_tokens * end // ends[-1] for end in ends]


def numbers_of(hashes: bytes) -> tuple[int, ...]:
    """Concatenated hashes as integers; an incomplete one at the end is ignored."""
    return struct.unpack_from(f"<{len(hashes) // HASH_BYTES}Q", hashes)


def hashes_of(numbers: Collection[int]) -> bytes:
    """The reverse of `numbers_of`."""
    return struct.pack(f"<{len(numbers)}Q", *numbers)
