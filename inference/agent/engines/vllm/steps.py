"""What vLLM's serving layer makes of each output of the engine, with the tokens it is made of.

vLLM yields the chunks of a stream one by one, and never says of which output: an opening in front
of the first, none at all while a parser waits for more, and several prompts are read ahead of what
is framed. But it goes through the choices of one output before it begins with the next, and there
it is followed: once it asks for one more choice than there are, all chunks of that output have
come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from vllm.outputs import CompletionOutput, RequestOutput

from inference.agent.engines.engine import IDS_AT_ONCE, Work
from inference.agent.engines.vllm.resume import is_replayed

Ids = dict[int, list[int]]
"""Of tokens, by choice as the answer has it."""


@dataclass(slots=True)
class Step:
    """Chunks, decoded, and the ids of the tokens that they follow from, if those are wanted."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    ids: Ids = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.chunks or self.ids)

    def gain(self, chunks: list[dict[str, Any]], ids: Ids) -> None:
        self.chunks += chunks
        for choice, more in ids.items():
            self.ids.setdefault(choice, []).extend(more)


class Steps:
    """Of one request. Who frames the answer says what it works on (`follow`, or `hold` for a whole
    answer), brings each chunk to `add`, and calls `end`; another task iterates. Steps that nobody
    takes become one.

    Of an answer that is gone on with, what is made of the replay is dropped, and so is its opening.
    """

    def __init__(self, work: Work) -> None:
        self._wants_ids, self._resumed = work.wants_ids, work.resume is not None
        self._made: list[dict[str, Any]] = []
        self._held = 0
        self._pending = Step()
        self._ready = asyncio.Event()
        self._over = False
        self.reasons = set[str]()
        """Why choices ended, replayed ones too."""

    def follow(self, output: RequestOutput, choices_before: int) -> None:
        """The next output to be framed, of a prompt with so many choices before its own."""
        output.outputs = _Followed(self, output, self._ids_of(output, choices_before))

    def hold(self, output: RequestOutput, choices_before: int) -> None:
        """It becomes part of a whole answer, but its ids are told before."""
        ids = self._ids_of(output, choices_before)
        self._pending.gain([], ids)
        self._held += sum(map(len, ids.values()))
        if self._held >= IDS_AT_ONCE:
            self._held = 0
            self._ready.set()

    def add(self, chunk: dict[str, Any]) -> None:
        """A chunk of what is followed."""
        self.reasons |= reasons_of(chunk)
        self._made.append(chunk)

    def end(self) -> None:
        """Nothing more comes."""
        self._over = True
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[Step]:
        while not self._over or self._pending:
            await self._ready.wait()
            self._ready.clear()
            if step := self._pending:
                self._pending = Step()
                yield step

    def begin_output(self) -> None:
        """What was made in front of it is the answer's opening."""
        if self._resumed:
            self._made.clear()

    def end_output(self, output: RequestOutput, ids: Ids) -> None:
        """All chunks of it have come."""
        chunks, self._made = self._made, []
        if not is_replayed(output) and (chunks or ids):
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
    """The choices of an output, which say how far they were read."""

    def __init__(self, steps: Steps, output: RequestOutput, ids: Ids) -> None:
        super().__init__(output.outputs)
        self._steps, self._output, self._ids = steps, output, ids

    def __iter__(self) -> Iterator[CompletionOutput]:
        self._steps.begin_output()
        yield from super().__iter__()
        self._steps.end_output(self._output, self._ids)


def reasons_of(body: dict[str, Any]) -> set[str]:
    """Why choices of an answer or chunk ended."""
    return {reason for choice in body["choices"] if (reason := choice.get("finish_reason"))}
