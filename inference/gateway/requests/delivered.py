"""What the reader of a request was given over all attempts, and where another engine resumes.

Rules
    1. Deltas are *exact* if the engine was asked for ids: the output up to the end of a delta
       follows from the ids up to the end of that delta. So another engine can resume after any
       delta, and only there.
    2. As long as the reader was given nothing, another engine may begin anew. It must if
       log-probabilities are requested, because those of tokens that are handed over are not known.
    3. If an engine reports ids out of bounds (choices, number of tokens, size of an id), no ids are
       kept.
    4. With `keeps`, what the reader was given goes with the request to its next engine, which keeps
       it for a gateway that adopts the request. An answer over MAX_KEPT_BYTES is not kept.

Token ids are kept in 4 bytes each. No IO, no clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from io import StringIO

import msgspec

from inference.gateway.fleet.dispatches import Bounds
from inference.link.accounts import Usage
from inference.link.wire import MAX_KEPT_BYTES, Delta, Resume

UTF8_BYTES = 4
"""Most bytes of a character in UTF-8."""


class Given:
    """Text and chunks of an answer."""

    __slots__ = ("_bytes", "_chunks", "_text")

    def __init__(self) -> None:
        self._text, self._chunks, self._bytes = StringIO(), list[bytes](), 0

    def add(self, delta: Delta) -> bool:
        """Add this delta; False if it is now over MAX_KEPT_BYTES."""
        self._text.write(delta.text)
        self._chunks += delta.chunks
        self._bytes += UTF8_BYTES * len(delta.text) + sum(map(len, delta.chunks))
        return self._bytes <= MAX_KEPT_BYTES

    def all(self) -> tuple[str, list[bytes]]:
        """Text and chunks."""
        return self._text.getvalue(), list(self._chunks)


class Delivered:
    """Call `begin` for each attempt and `add` for its deltas in order; `resume` returns where the
    next attempt continues."""

    __slots__ = (
        "_choices",
        "_exact",
        "_given",
        "_ids",
        "_kept",
        "_logprobs",
        "_most",
        "cached_tokens",
        "completion_tokens",
        "prompt_tokens",
    )

    def __init__(self, choices: int, *, logprobs: bool, keeps: bool = False) -> None:
        """`choices` bounds the choices whose ids are kept; see rules 2 and 4 for the others."""
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        """As the engines counted them, of this attempt and what it continues; unlike `usage` not
        bounded."""
        self._choices, self._logprobs = choices, logprobs
        self._given = False
        """Whether the reader was given anything."""
        self._exact = False
        self._most = Bounds(0, 0)
        self._ids: dict[int, array[int]] = {}
        self._kept = Given() if keeps else None

    @property
    def keeps(self) -> bool:
        """Whether everything that the reader was given is kept here."""
        return self._kept is not None

    @property
    def can_move(self) -> bool:
        """Whether another engine could continue the answer."""
        return not self._given or bool(self._exact and self._ids)

    @property
    def anew(self) -> bool:
        """Whether another engine would start from the beginning: rule 2."""
        return not self._given and (self._logprobs or not self._ids)

    def begin(self, most: Bounds, *, exact: bool) -> None:
        """An attempt begins. `most` bounds its tokens; with `exact` its deltas have ids."""
        if self.anew:
            self._ids.clear()
            self.prompt_tokens = self.cached_tokens = 0
        self.completion_tokens = sum(map(len, self._ids.values()))
        self._most, self._exact = most, exact

    def add(self, delta: Delta) -> Delta:
        """Count a delta from the engine; returns it as the reader gets it, without ids."""
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

    def usage(self, ttft_s: float | None, total_s: float) -> Usage:
        """What was used so far, within the bounds of the attempt. Times as the reader saw them."""
        return self._most.clamped(
            Usage(
                prompt_tokens=self.prompt_tokens,
                cached_tokens=self.cached_tokens,
                completion_tokens=self.completion_tokens,
                ttft_s=ttft_s,
                total_s=total_s,
            )
        )

    def resume(self, ttft_s: float | None, total_s: float) -> Resume | None:
        """Where another engine continues; None: it begins anew. Times as the reader saw them."""
        if self.anew:
            return None
        usage = msgspec.structs.replace(
            self.usage(ttft_s, total_s), completion_tokens=sum(map(len, self._ids.values()))
        )
        text, chunks = ("", []) if self._kept is None else self._kept.all()
        ids = {choice: list(ids) for choice, ids in self._ids.items()}
        return Resume(ids, usage=usage, text=text, chunks=chunks)

    def forget(self) -> None:
        """The request will not move any more: free what is kept for that."""
        self._exact, self._given, self._kept = False, True, None
        self._ids.clear()

    def _note(self, news: Mapping[int, list[int]]) -> None:
        """Keep the ids of a delta. Called about once per token."""
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
            if len(kept) > self._most.output_tokens:
                return self.forget()
