"""Tells from which output of the engine, and so which tokens, vLLM's serving layer made chunks.

vLLM yields the chunks of a stream one by one without saying from which output: an opening before
the first, none at all while a parser waits for more; and with several prompts it reads ahead of
what it frames. But it iterates over the choices of one output before it begins with the next, and
this is observed: once that iteration is exhausted, all chunks of that output have come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm.outputs import CompletionOutput, RequestOutput

from inference.agent.engines.engine import IDS_AT_ONCE, EngineWork
from inference.agent.engines.vllm.replay import is_replayed

Ids = dict[int, list[int]]
"""Token ids by choice, numbered as in the answer."""


@dataclass(slots=True)
class EngineStep:
    """Decoded chunks, and the ids of the tokens that they follow from, if those are wanted."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    ids: Ids = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.chunks or self.ids)

    def gain(self, chunks: list[dict[str, Any]], ids: Ids) -> None:
        self.chunks += chunks
        for choice, more in ids.items():
            self.ids.setdefault(choice, []).extend(more)


class Steps:
    """The steps of one request. The task that frames the answer says what it works on (`follow`, or
    `hold` for a whole answer), passes each chunk to `add`, and calls `end`; another task iterates.
    Steps that have not been taken yet are merged into one.

    Of a continued answer, the chunks made of the replay are dropped, and so is its opening, unless
    it is `whole`.
    """

    def __init__(self, work: EngineWork, *, reports_ids: bool = True) -> None:
        """Without `reports_ids` nothing is observed: chunks are passed on as they come."""
        self._reports_ids = reports_ids
        self._wants_ids, self._resumed = work.wants_ids, work.resume is not None
        self._made: list[dict[str, Any]] = []
        self._held = 0
        self._pending = EngineStep()
        self._ready = asyncio.Event()
        self._over = False
        self.whole = False
        """Whether the steps become a whole answer. To be set before the first."""
        self.reasons = set[str]()
        """Finish reasons of the choices, replayed ones included."""

    def follow(self, output: RequestOutput, choices_before: int) -> None:
        """The next output to be framed; earlier prompts have `choices_before` choices in all.

        Mutates it: its choices report when they are iterated over.
        """
        if self._reports_ids:
            output.outputs = _Followed(self, output, self._ids_of(output, choices_before))

    def hold(self, output: RequestOutput, choices_before: int) -> None:
        """The output becomes part of a whole answer, but its ids are reported before."""
        ids = self._ids_of(output, choices_before)
        self._pending.gain([], ids)
        self._held += sum(map(len, ids.values()))
        if self._held >= IDS_AT_ONCE:
            self._held = 0
            self._ready.set()

    def add(self, chunk: dict[str, Any]) -> None:
        """A chunk of the output that is followed."""
        self.reasons |= reasons_of(chunk)
        if self._reports_ids:
            self._made.append(chunk)
        else:
            self._pending.gain([chunk], {})
            self._ready.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._over = True
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[EngineStep]:
        while not self._over or self._pending:
            await self._ready.wait()
            self._ready.clear()
            if step := self._pending:
                self._pending = EngineStep()
                yield step

    def begin_output(self) -> None:
        """Chunks made before this are the answer's opening."""
        if self._resumed and not self.whole:
            self._made.clear()

    def end_output(self, output: RequestOutput, ids: Ids) -> None:
        """All chunks of this output have come."""
        chunks, self._made = self._made, []
        if (self.whole or not is_replayed(output)) and (chunks or ids):
            self._pending.gain(chunks, ids)
            self._ready.set()

    def _ids_of(self, output: RequestOutput, choices_before: int) -> Ids:
        if not self._wants_ids or is_replayed(output):
            return {}
        return {
            choices_before + choice.index: list(choice.token_ids)
            for choice in output.outputs
            if choice.token_ids
        }


class _Followed(list[CompletionOutput]):
    """The choices of an output, which report when iterating over them begins and ends."""

    def __init__(self, steps: Steps, output: RequestOutput, ids: Ids) -> None:
        super().__init__(output.outputs)
        self._steps, self._output, self._ids = steps, output, ids

    def __iter__(self) -> Iterator[CompletionOutput]:
        self._steps.begin_output()
        yield from super().__iter__()
        self._steps.end_output(self._output, self._ids)


def reasons_of(body: dict[str, Any]) -> set[str]:
    """Finish reasons of the choices of an answer or chunk."""
    return {reason for choice in body["choices"] if (reason := choice.get("finish_reason"))}
