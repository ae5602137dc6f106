"""Which beginnings of prompts the engine's prefix cache holds, in the words of gateways.

A gateway names a prompt's beginnings by hashes of its text (`wire.Prefix`); an engine says which
blocks of tokens it stored for which request, and which it removed. Here the two meet: a request's
own blocks, in their order, say in which block each of its beginnings ends. As a block stands for
all before it as well, a beginning is warm as long as this one is stored.

    `expect` a request, `counted` once its prompt's tokens are known, `hear` what the engine tells;
    `since` says what changed. A beginning counts as soon as all is known, in whatever order.

What gateways are told is these hashes alone. The engine's words of its blocks (tokens, names,
salts) go no further than `engines`.

Where exactly a beginning ends is known in characters, and the tokens up to there are as many as
their share of them: a guess within a block or two, and a beginning counts only with its whole
blocks. All is bounded; what was used least recently is forgotten first, and cold for gateways.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from inference.agent.engines.cache_news import Block, News, Removed, Stored
from inference.link.wire import Prefix, hashes_of

MAX_HASHES = 4096
"""Beginnings told: about half a million tokens in strides of 512 characters, 4 MB here."""
MAX_CHANGES = 2 * MAX_HASHES
"""A gateway that missed more is told everything anew."""
MAX_EXPECTED = 1024
"""Requests whose blocks are still to come; more than run at once. Each has some 256 beginnings."""


class Change(NamedTuple):
    """What became warm and cold, as `wire.Stats` has it, and the mark from which to go on."""

    mark: int
    warm: bytes
    cold: bytes
    anew: bool


@dataclass(slots=True)
class _Expected:
    """One request."""

    prefix: Prefix
    prompt_tokens: int = 0
    blocks: list[Block] = field(default_factory=list)
    block_tokens: int = 0


class WarmPrefixes:
    """The beginnings that one engine holds."""

    def __init__(self, max_hashes: int = MAX_HASHES, max_changes: int = MAX_CHANGES) -> None:
        self._max_hashes, self._max_changes = max_hashes, max_changes
        self._expected: OrderedDict[str, _Expected] = OrderedDict()
        self._warm: OrderedDict[int, Block] = OrderedDict()
        """The block that each ends in, the least recently used first."""
        self._ending_in: dict[Block, set[int]] = {}
        self._mark = 0
        self._changes: OrderedDict[int, int] = OrderedDict()
        """The mark of each one's last change, the last changed last."""
        self._whole_before = 0
        """Who has a mark below it missed a change that is no longer known."""

    @property
    def mark(self) -> int:
        """Of the last change."""
        return self._mark

    def expect(self, key: str, prefix: Prefix) -> None:
        """A request with this prompt goes to the engine, which calls it `key`."""
        self._expected[key] = _Expected(prefix)
        if len(self._expected) > MAX_EXPECTED:
            self._expected.popitem(last=False)

    def counted(self, key: str, prompt_tokens: int) -> None:
        """The engine counted its prompt."""
        if (expected := self._expected.get(key)) is not None:
            expected.prompt_tokens = prompt_tokens
            self._match(key, expected)

    def hear(self, news: Iterable[News]) -> None:
        """The engine told what became of its cache."""
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
        """Of a prompt of so many tokens with these beginnings, about."""
        for hash, tokens in zip(
            reversed(prefix.numbers()), reversed(prefix.tokens(prompt_tokens)), strict=True
        ):
            if hash in self._warm:
                return tokens
        return 0

    def all(self) -> bytes:
        """Everything warm, as `wire.Hello` has it."""
        return hashes_of(self._warm)

    def since(self, mark: int) -> Change:
        """What changed after the mark. Takes time by the number of changes."""
        if mark < self._whole_before:
            return Change(self._mark, self.all(), b"", True)
        warm, cold = list[int](), list[int]()
        for hash in reversed(self._changes):
            if self._changes[hash] <= mark:
                break
            (warm if hash in self._warm else cold).append(hash)
        return Change(self._mark, hashes_of(warm), hashes_of(cold), False)

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
        """Find the blocks of as many of its beginnings as can be known, the longest first, so that
        the shortest were used last."""
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
