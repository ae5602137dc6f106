"""Hashes of a prompt's beginnings, by which gateways find the engines that have computed them.

An engine's prefix cache holds tokens, but gateways don't tokenize. So a gateway hashes text: one
hash at the end of each message and after every STRIDE characters, each over the whole prompt up to
there. Two prompts that begin alike have the same first hashes. The hashed text is not exactly what
the engine computes, the tokens of the chat template's output; but prompts whose texts begin alike
also have tokens that begin alike, and a wrong guess costs time, never correctness.

Hashes that leave this process are keyed by the tenant's salt and the adapter, as the engine's cache
is. So they do not reveal what two tenants have in common, and nobody can test guesses of a text
against them.

Work and size are bounded for any body: MAX_CHARS are hashed, MAX_MARKS kept. Strides are longer far
into a prompt, where a missed part is small compared with what was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice

from inference.link.prefixes import HASH_BYTES, Prefix

STRIDE = 512
"""Characters between two hashes: about 128 tokens of English, a few blocks of a cache."""
NEAR_CHARS = 1 << 15
FAR_STRIDE = 4096
"""Characters between two hashes beyond NEAR_CHARS."""
MAX_CHARS = 1 << 19
"""Characters hashed at most: about 128,000 tokens, in half a millisecond."""
MAX_MARKS = 256
MAX_OPENING = 512
"""Characters kept of the user's first message."""
MAX_QUESTION = 2000
"""Characters kept of the user's last message: half from its beginning, half from its end."""
MAX_PARTS = 32
"""Parts of it that count."""


class Beginnings:
    """The hashes of one prompt: `add` its texts in order, `mark` the end of each message."""

    __slots__ = (
        "_chars", "_digests", "_ends", "_hash", "_stride_end", "opening", "question",
        "question_chars",
    )  # fmt: skip

    def __init__(self, tools: bytes = b"") -> None:
        """`tools` come first. No mark lies within them, because templates put them before or after
        the first message."""
        self._hash = blake2b(tools, digest_size=2 * HASH_BYTES)
        self._chars = len(tools)
        self._stride_end = self._chars + STRIDE
        self._digests: list[bytes] = []
        self._ends: list[int] = []
        self.opening = ""
        """The beginning of the user's first message, which requests of a conversation share."""
        self.question, self.question_chars = "", 0
        """An excerpt of the user's last message, by which a route chooses, and how long it is."""

    @property
    def full(self) -> bool:
        """Whether further text would be ignored."""
        return self._chars >= MAX_CHARS or len(self._ends) >= MAX_MARKS

    def add(self, text: str) -> None:
        """Append text to the prompt."""
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
        """Record the text so far, if there is any, as a beginning that other prompts may share."""
        last = self._ends[-1] if self._ends else 0
        if len(self._ends) < MAX_MARKS and self._chars > last:
            self._digests.append(self._hash.copy().digest())
            self._ends.append(self._chars)

    def open(self, role: str | None, texts: Iterable[str]) -> None:
        """Note the opening, if this message is the user's and has one."""
        if not self.opening and role == "user":
            self.opening = "".join(texts)[:MAX_OPENING]

    def ask(self, texts: Iterable[str]) -> None:
        """Note the user's last message, whose parts are not joined: they may have megabytes."""
        head, tail, half = "", "", MAX_QUESTION // 2
        for text in islice(texts, MAX_PARTS):
            self.question_chars += len(text)
            taken = text[: half - len(head)]
            head += taken
            tail = (tail + text[max(len(taken), len(text) - half) :])[-half:]
        self.question = head + tail

    def named(self, salt: str, adapter: str) -> Prefix | None:
        """The hashes keyed by a tenant's salt and an adapter's name, which is empty for the base
        model; None if there is no text."""
        if not self._ends:
            return None
        key = blake2b(f"{salt}\0{adapter}".encode(), digest_size=32).digest()
        hashes = [blake2b(key + one, digest_size=HASH_BYTES).digest() for one in self._digests]
        return Prefix.of([int.from_bytes(one, "little") for one in hashes], self._ends)
