"""Which prompt prefixes the engine's prefix cache holds, by the hashes that gateways use.

A gateway names the prefixes of a prompt by hashes of its text (`Prefix`); an engine reports
which blocks of tokens it stored for which request, and which it removed. This module joins the two:
a request's own blocks, in their order, tell in which block each of its prefixes ends. Because a
block stands for all before it as well, a prefix is warm as long as that block is stored.

    `expect` a request, `counted` once its prompt's tokens are known, `update` with the engine's
    news; `since` returns what changed. A prefix counts as soon as all of this is known, in any
    order.

Gateways are told these hashes alone. What the engine says of its blocks (tokens, names, salts) goes
no further than `engines`.

Where a prefix ends is known exactly in characters; its tokens are estimated as the same share of
the prompt's tokens, to within a block or two, and only its whole blocks count. Everything is
bounded; the least recently used prefix is forgotten first, and is then cold for gateways.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from inference.agent.engines.cache_news import Block, News, Removed, Stored
from inference.link.prefixes import Prefix, hashes_of

MAX_HASHES = 4096
"""Prefixes known: about half a million tokens in strides of 512 characters, 4 MB here."""
MAX_CHANGES = 2 * MAX_HASHES
"""Changes remembered; a gateway that missed more is told everything again."""
MAX_EXPECTED = 1024
"""Requests whose blocks are still to come; more than run at once. Each has some 256 prefixes."""


class PrefixChange(NamedTuple):
    """What became warm and cold, as in `wire.Stats`, and the mark to pass to the next `since`."""

    mark: int
    warm: bytes
    cold: bytes
    anew: bool


@dataclass(slots=True)
class _Expected:
    """A request whose blocks are still to come."""

    prefix: Prefix
    prompt_tokens: int = 0
    blocks: list[Block] = field(default_factory=list)
    block_tokens: int = 0


class WarmPrefixes:
    """The prefixes that one engine's cache holds."""

    def __init__(self, max_hashes: int = MAX_HASHES, max_changes: int = MAX_CHANGES) -> None:
        self._max_hashes, self._max_changes = max_hashes, max_changes
        self._expected: OrderedDict[str, _Expected] = OrderedDict()
        self._warm: OrderedDict[int, Block] = OrderedDict()
        """The block in which each prefix ends, the least recently used first."""
        self._ending_in: dict[Block, set[int]] = {}
        self._mark = 0
        self._changes: OrderedDict[int, int] = OrderedDict()
        """The mark of each prefix's last change, the last changed last."""
        self._whole_before = 0
        """A caller whose mark is lower missed a change that is no longer remembered."""

    @property
    def mark(self) -> int:
        """That of the last change."""
        return self._mark

    def expect(self, key: str, prefix: Prefix) -> None:
        """A request with this prompt is given to the engine under the name `key`."""
        self._expected[key] = _Expected(prefix)
        if len(self._expected) > MAX_EXPECTED:
            self._expected.popitem(last=False)

    def counted(self, key: str, prompt_tokens: int) -> None:
        """The engine counted the request's prompt."""
        if (expected := self._expected.get(key)) is not None:
            expected.prompt_tokens = prompt_tokens
            self._match(key, expected)

    def update(self, news: Iterable[News]) -> None:
        """Take in the engine's news of its cache."""
        for one in news:
            match one:
                case Stored():
                    self._stored(one)
                case Removed(blocks):
                    self._removed(blocks)
                case _:  # cleared
                    self._removed(list(self._ending_in))
                    self._expected.clear()

    def held_tokens(self, prefix: Prefix, prompt_tokens: int) -> int:
        """About how many of the tokens of a prompt with these prefixes the cache holds."""
        for hash, tokens in zip(
            reversed(prefix.numbers()), reversed(prefix.tokens(prompt_tokens)), strict=True
        ):
            if hash in self._warm:
                return tokens
        return 0

    def all(self) -> bytes:
        """All warm prefixes, as in `wire.Hello`."""
        return hashes_of(self._warm)

    def since(self, mark: int) -> PrefixChange:
        """What changed after the mark. O(number of changes)."""
        if mark < self._whole_before:
            return PrefixChange(self._mark, self.all(), b"", True)
        warm, cold = list[int](), list[int]()
        for hash in reversed(self._changes):
            if self._changes[hash] <= mark:
                break
            (warm if hash in self._warm else cold).append(hash)
        return PrefixChange(self._mark, hashes_of(warm), hashes_of(cold), False)

    def _stored(self, news: Stored) -> None:
        if (expected := self._expected.get(news.key)) is None:
            return
        if news.parent is None:
            expected.blocks = list(news.blocks)
        elif expected.blocks and expected.blocks[-1] == news.parent:
            expected.blocks += news.blocks
        expected.block_tokens = news.block_tokens
        self._match(news.key, expected)

    def _removed(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            for hash in self._ending_in.pop(block, ()):
                del self._warm[hash]
                self._note(hash)

    def _match(self, key: str, expected: _Expected) -> None:
        """Mark those of its prefixes as warm whose blocks are known, the longest first, so that the
        shortest count as the most recently used."""
        if not (expected.prompt_tokens and expected.blocks):
            return
        prefix = expected.prefix
        found: list[tuple[int, Block]] = []
        ends = prefix.tokens(expected.prompt_tokens)
        for hash, end in zip(prefix.numbers(), ends, strict=False):
            blocks = end // expected.block_tokens
            if blocks > len(expected.blocks):
                break
            if blocks:
                found.append((hash, expected.blocks[blocks - 1]))
        else:
            del self._expected[key]
        for hash, block in reversed(found):
            self._hold(hash, block)

    def _hold(self, hash: int, block: Block) -> None:
        before = self._warm.get(hash)
        self._warm[hash] = block
        self._warm.move_to_end(hash)
        if before == block:
            return
        self._ending_in.setdefault(block, set()).add(hash)
        if before is not None:
            self._leave(before, hash)
            return
        self._note(hash)
        if len(self._warm) > self._max_hashes:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        hash, block = self._warm.popitem(last=False)
        self._leave(block, hash)
        self._note(hash)

    def _leave(self, block: Block, hash: int) -> None:
        self._ending_in[block].discard(hash)
        if not self._ending_in[block]:
            del self._ending_in[block]

    def _note(self, hash: int) -> None:
        self._mark += 1
        self._changes[hash] = self._mark
        self._changes.move_to_end(hash)
        if len(self._changes) > self._max_changes:
            _, self._whole_before = self._changes.popitem(last=False)
