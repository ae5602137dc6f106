"""What the reader of a request was given, over all its attempts, and where another engine goes on.

Rules
    1. Deltas of an engine are *exact*, if it was asked for ids: what the reader was given up to and
       including one of them follows from the ids up to and including it. So an answer may be cut
       after any delta, and only there.
    2. Where the reader was given nothing yet, another engine may as well begin anew. It must where
       log-probabilities are asked for: those of tokens that it is told are known to nobody.
    3. Ids of an engine that says more than it may (choices, tokens, numbers) are not kept.
    4. With `keeps`, what the reader was given goes with the request to its next engine, which keeps
       it for a gateway that adopts the request. Of a long answer it is not kept.

Token ids are kept in 4 bytes each. No IO, no clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from io import StringIO

from inference.gateway.fleet.dispatches import Bounds
from inference.link.wire import MAX_KEPT_BYTES, Delta, Resume, Usage

UTF8_BYTES = 4
"""Of a character, at the most."""


class Given:
    """Text and chunks of an answer."""

    __slots__ = ("_bytes", "_chunks", "_text")

    def __init__(self) -> None:
        self._text, self._chunks, self._bytes = StringIO(), list[bytes](), 0

    def add(self, delta: Delta) -> bool:
        """Keep this as well; False: there is too much."""
        self._text.write(delta.text)
        self._chunks += delta.chunks
        self._bytes += UTF8_BYTES * len(delta.text) + sum(map(len, delta.chunks))
        return self._bytes <= MAX_KEPT_BYTES

    def all(self) -> tuple[str, list[bytes]]:
        """Text and chunks."""
        return self._text.getvalue(), list(self._chunks)


class Delivered:
    """`begin` each attempt, `add` its deltas in order; `resume` says where another one goes on."""

    __slots__ = (
        "_choices",
        "_exact",
        "_given",
        "_ids",
        "_kept",
        "_logprobs",
        "_most_tokens",
        "cached_tokens",
        "completion_tokens",
        "prompt_tokens",
    )

    def __init__(self, choices: int, *, logprobs: bool, keeps: bool = False) -> None:
        """Of an answer of so many choices."""
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        """As the engines counted them, this attempt and what it goes on from."""
        self._choices, self._logprobs = choices, logprobs
        self._given = False
        """The reader was given something."""
        self._exact = False
        self._most_tokens = 0
        self._ids: dict[int, array[int]] = {}
        self._kept = Given() if keeps else None

    @property
    def keeps(self) -> bool:
        """Whether all that the reader was given is here."""
        return self._kept is not None

    @property
    def can_move(self) -> bool:
        """Whether another engine could go on with it."""
        return not self._given or bool(self._exact and self._ids)

    @property
    def anew(self) -> bool:
        """Whether another engine would begin from nothing: rule 2."""
        return not self._given and (self._logprobs or not self._ids)

    def begin(self, most: Bounds, *, exact: bool) -> None:
        """An attempt begins, which can have so many tokens at most, and is exact or isn't."""
        if self.anew:
            self._ids.clear()
            self.prompt_tokens = self.cached_tokens = 0
        self.completion_tokens = sum(map(len, self._ids.values()))
        self._most_tokens, self._exact = most.output_tokens, exact

    def add(self, delta: Delta) -> Delta:
        """The engine sent this; what the reader gets of it."""
        self.prompt_tokens += delta.prompt_tokens
        self.cached_tokens += delta.cached_tokens
        self.completion_tokens += delta.tokens
        if delta.text or delta.chunks:
            self._given = True
            if self._kept is not None and not self._kept.add(delta):
                self._kept = None
        if not delta.ids:
            return delta
        if self._exact:
            self._note(delta.ids)
        return Delta(
            delta.id,
            delta.text,
            delta.tokens,
            delta.chunks,
            delta.prompt_tokens,
            delta.cached_tokens,
            delta.attempt,
        )

    def resume(self, ttft_s: float | None, total_s: float) -> Resume | None:
        """Where another engine goes on; None: it begins anew. Times as the reader saw them."""
        if self.anew:
            return None
        usage = Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=sum(map(len, self._ids.values())),
            ttft_s=ttft_s,
            total_s=total_s,
        )
        text, chunks = ("", []) if self._kept is None else self._kept.all()
        ids = {choice: list(ids) for choice, ids in self._ids.items()}
        return Resume(ids, usage=usage, text=text, chunks=chunks)

    def forget(self) -> None:
        """It will not move any more."""
        self._exact, self._given, self._kept = False, True, None
        self._ids.clear()

    def _note(self, news: Mapping[int, list[int]]) -> None:
        """Once per token."""
        for choice, ids in news.items():
            kept = self._ids.get(choice)
            if kept is None:
                if not 0 <= choice < self._choices:
                    return self.forget()
                kept = self._ids[choice] = array("I")
            try:
                kept.fromlist(ids)
            except OverflowError:
                return self.forget()
            if len(kept) > self._most_tokens:
                return self.forget()
