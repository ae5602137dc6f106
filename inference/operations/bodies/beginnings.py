"""Names for the beginnings of a prompt, by which gateways find who has computed them already.

An engine's prefix cache knows tokens, and gateways don't tokenise. So a gateway hashes text: one
hash at each end of a message and after every STRIDE characters, each over all of the prompt up to
there. Two prompts that begin alike have the same first hashes. What they are over is not quite what
the engine computes, which is the chat template's text in tokens; both begin alike where the other
does, and a wrong guess costs time and never an answer.

The hashes that leave this process are keyed by the tenant's salt and the adapter, as the engine's
cache is, so nobody learns from them what two tenants have in common, nor tries out what a text is.

Work and size are bounded whatever the body holds: MAX_CHARS are hashed, MAX_MARKS kept. Far into a
prompt the strides are longer: what is missed there is little against what was found.
"""

from __future__ import annotations

from hashlib import blake2b

from inference.link.wire import HASH_BYTES, Prefix

STRIDE = 512
"""Characters; about 128 tokens of English, a few blocks of a cache."""
NEAR_CHARS = 1 << 15
FAR_STRIDE = 4096
"""Beyond NEAR_CHARS."""
MAX_CHARS = 1 << 19
"""About 128,000 tokens, in half a millisecond."""
MAX_MARKS = 256


class Beginnings:
    """One prompt, as it is read: `add` its texts in their order, `mark` each end of a message."""

    __slots__ = ("_chars", "_digests", "_ends", "_hash", "_stride_end")

    def __init__(self, tools: bytes = b"") -> None:
        """`tools` go before all else; as templates put them before or behind the first message, no
        mark lies within them."""
        self._hash = blake2b(tools, digest_size=2 * HASH_BYTES)
        self._chars = len(tools)
        self._stride_end = self._chars + STRIDE
        self._digests: list[bytes] = []
        self._ends: list[int] = []

    @property
    def full(self) -> bool:
        """Whether more text can't change anything."""
        return self._chars >= MAX_CHARS or len(self._ends) >= MAX_MARKS

    def add(self, text: str) -> None:
        """More of the prompt."""
        at = 0
        while at < len(text) and not self.full:
            piece = text[at : at + self._stride_end - self._chars]
            at += len(piece)
            self._hash.update(piece.encode())
            self._chars += len(piece)
            if self._chars == self._stride_end:
                self.mark()
                self._stride_end += STRIDE if self._chars < NEAR_CHARS else FAR_STRIDE

    def mark(self) -> None:
        """What was added so far, if anything, is a beginning that others may share."""
        last = self._ends[-1] if self._ends else 0
        if len(self._ends) < MAX_MARKS and self._chars > last:
            self._digests.append(self._hash.copy().digest())
            self._ends.append(self._chars)

    def named(self, salt: str, adapter: str) -> Prefix | None:
        """The hashes for a tenant's salt and an adapter's name, empty for the base model; None if
        there is no text."""
        if not self._ends:
            return None
        key = blake2b(f"{salt}\0{adapter}".encode(), digest_size=32).digest()
        hashes = [blake2b(key + one, digest_size=HASH_BYTES).digest() for one in self._digests]
        return Prefix.of([int.from_bytes(one, "little") for one in hashes], self._ends)
