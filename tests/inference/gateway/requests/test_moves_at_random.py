"""Random sequences of events at engines: readers lose and double no token, and nothing leaks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import (
    EngineFailed,
    EngineLost,
    InferenceError,
    NoEngine,
    Overloaded,
    RequestQuarantined,
)
from inference.gateway.requests import request
from inference.gateway.requests.held import Holding
from inference.gateway.requests.stream import Stream
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.wire import Delta, Done, Fault
from tests.inference.played import Bench, Played, benched
from tests.inference.samples import MODEL, OLDER

pytestmark = pytest.mark.pure

LENGTH, PROMPT = 6, 5
"""Tokens of each answer and of its prompt. An answer's n-th token has the id n and the text
`n,`."""
WHOLE = "".join(f"{n}," for n in range(LENGTH))
ENDS = (EngineLost, RequestQuarantined, EngineFailed, NoEngine, Overloaded)
"""The errors with which a request may legitimately end."""


@dataclass
class Actor:
    """A well-behaved engine: it continues where the resume says."""

    played: Played
    at: dict[tuple[str, int], int] = field(default_factory=dict)
    """By request and attempt: tokens generated so far."""
    tells: dict[tuple[str, int], bool] = field(default_factory=dict)
    """By request and attempt: whether token ids were asked for."""
    drains: bool = False

    async def listen(self) -> None:
        while not self.played.all_heard:
            match await self.played.hear():
                case wire.Submit(id=id, attempt=attempt, ids=ids, resume=resume):
                    told = [] if resume is None else resume.ids[0]
                    assert told == list(range(len(told))), "a token is lost, or doubled"
                    assert ids or resume is None or attempt > 2
                    self.at[id, attempt], self.tells[id, attempt] = len(told), ids
                case wire.Cancel(id=id, attempt=attempt):
                    if (id, attempt) in self.at:
                        self.end(id, attempt, "cancelled")
                case _:
                    pass

    def step(self) -> None:
        for (id, attempt), at in list(self.at.items()):
            if at == LENGTH:
                self.end(id, attempt, "stop")
                continue
            ids = {0: [at]} if self.tells[id, attempt] else {}
            prompt = 0 if at else PROMPT
            self.played.say(wire.Step([Delta(id, f"{at},", 1, [], prompt, 0, attempt, ids)]))
            self.at[id, attempt] = at + 1

    def end(self, id: str, attempt: int, reason: str, fault: InferenceError | None = None) -> None:
        at = self.at.pop((id, attempt))
        usage = Usage(PROMPT if at else 0, 0, at)
        said = None if fault is None else Fault.of(fault)
        self.played.say(Done(id, usage, None if said else reason, fault=said, attempt=attempt))

    def drain(self) -> None:
        self.drains = True
        self.played.say(wire.Drain())
        for id, attempt in list(self.at):
            self.end(id, attempt, "moved")

    def fail(self) -> None:
        for id, attempt in list(self.at):
            self.end(id, attempt, "", EngineFailed())


@dataclass
class Reader:
    """A client: the text that it received, and how the answer ended."""

    stream: Stream
    text: str = ""
    error: InferenceError | None = None
    left: bool = False

    async def run(self) -> None:
        try:
            while isinstance(news := await self.stream.read(), Delta):
                self.text += news.text
        except InferenceError as error:
            self.error = error


async def turn() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


OPS = (*["ask"] * 4, *["step"] * 6, *["join"] * 2, "join_old", "lose", "drain", "fail", "leave")


class World:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.actors: dict[str, Actor] = {}
        self.readers: list[Reader] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def join(self, *, old: bool = False) -> None:
        name = f"e{len(self.bench.links)}"
        played = await self.bench.join(name, model=OLDER if old else MODEL, run=f"run-{name}")
        self.actors[name] = Actor(played)

    async def do(self, op: str, number: int) -> None:
        names = list(self.actors)
        name = names[number % len(names)] if names else ""
        match op:
            case "ask":
                reader = Reader(self.bench.submit(f"r{len(self.readers)}"))
                self.readers.append(reader)
                self.tasks.append(asyncio.create_task(reader.run()))
            case "join":
                await self.join()
            case "join_old":
                await self.join(old=True)
            case "leave" if self.readers:
                reader = self.readers[number % len(self.readers)]
                reader.left = True
                reader.stream.cancel("cancelled")
            case "step" if name:
                self.actors[name].step()
            case "lose" if name:
                self.actors.pop(name).played.hang_up()
            case "drain" if name:
                self.actors[name].drain()
            case "fail" if name:
                self.actors[name].fail()
        await self.listen()

    async def listen(self) -> None:
        await turn()
        for actor in self.actors.values():
            await actor.listen()
        await turn()

    async def finish(self) -> None:
        """Join an engine that works, and serve every request to its end."""
        await self.join()
        while self.bench.hub.in_flight:
            await self.listen()
            for actor in self.actors.values():
                actor.step()
            await self.listen()
        await asyncio.gather(*self.tasks)

    def judge(self) -> None:
        hub, limits = self.bench.hub, self.bench.limits
        assert hub.held == {} and not limits.open
        for reader in self.readers:
            id = reader.stream.id
            assert limits.offered.count(id) + limits.released.count(id) == 1, "settled once"
            assert WHOLE.startswith(reader.text)
            if reader.left:
                continue
            if reader.error is not None:
                assert isinstance(reader.error, ENDS)
                continue
            assert reader.text == WHOLE
            used = limits.settled[id]
            assert used is not None
            assert (used.prompt_tokens, used.completion_tokens) == (PROMPT, LENGTH)


@given(st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 7)), min_size=20, max_size=60))
def test_nobody_loses_or_doubles_a_token_and_nothing_leaks(ops: list[tuple[str, int]]) -> None:
    async def run() -> None:
        async with benched(holding=Holding(60.0)) as bench:
            world = World(bench)
            for _ in range(2):
                await world.join()
            for op, number in ops:
                await world.do(op, number)
            await world.finish()
            world.judge()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "RETURNS_S", 0.0)
        asyncio.run(run())
