"""Bugs in the handling of one request: it ends with status 500, and no other request notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import structlog

from inference.errors import InferenceError
from inference.gateway.measuring.content import RequestContents
from inference.gateway.requests.held import Holding
from inference.gateway.requests.request import (
    Begun,
    Extend,
    Forget,
    Moved,
    Place,
    Timer,
)
from inference.gateway.requests.stream import Stream
from inference.link import wire
from inference.link.wire import Cancel, Wait
from tests.inference.gateway.requests.test_moves_at_random import LENGTH, WHOLE, Reader, World
from tests.inference.played import benched
from tests.inference.samples import GRANT

VICTIM, BYSTANDER = "r0", "r1"


class Bug(Exception):
    pass


Spoil = Callable[[World, Stream], None]


def of_command(command: type[Any]) -> Spoil:
    def spoil(world: World, victim: Stream) -> None:
        commands = world.bench.hub._requests._commands
        execute = commands[command]

        def failing(stream: Stream, it: Any) -> None:
            if stream is victim:
                raise Bug
            execute(stream, it)

        commands[command] = failing

    return spoil


def fails(*args: object) -> Any:
    raise Bug


def of_delivery(world: World, victim: Stream) -> None:
    cast(Any, victim).push = fails


def of_event(event: str) -> Spoil:
    return lambda world, victim: setattr(victim.request, event, fails)


def of_capture(world: World, victim: Stream) -> None:
    assert victim.capture is not None
    cast(Any, victim.capture).end = fails


def of_callback(world: World, victim: Stream) -> None:
    victim.when_settled.insert(0, fails)


def of_limits(world: World, victim: Stream) -> None:
    limits = cast(Any, world.bench.limits)
    settle = limits.settle
    limits.settle = lambda id, *used: fails() if id == VICTIM else settle(id, *used)


def of_extension(world: World, victim: Stream) -> None:
    async def failing(*args: object) -> None:
        raise Bug

    cast(Any, world.bench.limits).extend = failing


COMMANDS = (Wait, Begun, Timer, Moved, Place, Extend, Forget)
EVENTS = ("hold", "place", "output", "stop")
SPOILED: dict[str, Spoil] = {
    **{command.__name__: of_command(command) for command in COMMANDS},
    **{event: of_event(event) for event in EVENTS},
    "delivery": of_delivery,
    "capture": of_capture,
    "callback": of_callback,
    "limits": of_limits,
    "extension": of_extension,
}
IN_SUBMIT = ("hold", "Wait", "Timer")
AT_ITS_END = ("Forget", "capture", "callback", "limits")
"""The answer is complete by then."""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two requests: the victim is held, the bystander runs on an engine that takes no more."""
    async with benched(holding=Holding(60.0)) as bench:
        world = World(bench)
        await world.join()
        world.readers += [Reader(bench.submit(BYSTANDER))]
        await world.listen()
        world.actors["e0"].drains = True
        world.actors["e0"].played.say(wire.Drain())
        await world.listen()
        yield world


async def life(world: World, victim: Stream) -> None:
    """A request that is held, runs, moves, outgrows its reservation and ends."""
    for op in ("join", "step", "join", "step"):
        await world.do(op, 1)
    world.actors.pop("e1").played.hang_up()
    await world.listen()
    for _ in range(LENGTH + 1):
        for number in range(len(world.actors)):
            await world.do("step", number)
    await world.finish()


@pytest.mark.parametrize("what", SPOILED)
async def test_a_bug_in_one_request_ends_that_request_alone(world: World, what: str) -> None:
    bench = world.bench
    contents = RequestContents()
    with structlog.testing.capture_logs() as logs:
        spoil = SPOILED[what]
        if what in IN_SUBMIT:
            made = bench.hub._requests._stream

            def spoiled(*args: Any) -> Stream:
                stream = made(*args)
                spoil(world, stream)
                return stream

            cast(Any, bench.hub._requests)._stream = spoiled
        bench.limits.tokens_left = 100
        victim = bench.submit(VICTIM, output_tokens=4, grows=True, watch=lambda wait: None)
        victim.attach_capture(
            contents.begin(VICTIM, replace(GRANT, keeps_content=True), "chat", b"{}")
        )
        if what not in IN_SUBMIT:
            spoil(world, victim)
        reader = Reader(victim)
        world.readers.append(reader)
        world.tasks += [asyncio.create_task(one.run()) for one in world.readers]
        await life(world, victim)
    bystander = world.readers[0]
    assert (bystander.text, bystander.error) == (WHOLE, None)
    assert bench.hub.crashed and bench.hub.in_flight == 0 and not bench.hub.held
    crashes = [line for line in logs if line["event"] == "request_crashed"]
    assert {line["request_id"] for line in crashes} == {VICTIM}
    if what in AT_ITS_END:
        assert (reader.text, reader.error) == (WHOLE, None)
    else:
        assert type(reader.error) is InferenceError and reader.error.http_status == 500
    assert all(not task.done() for task in bench.links if task is not bench.links[1])


async def test_a_request_that_can_not_be_cancelled_ends(world: World) -> None:
    world.readers.clear()
    await world.join()
    victim = world.bench.submit(VICTIM)
    await world.listen()
    of_command(Cancel)(world, victim)
    victim.cancel("cancelled")
    assert world.bench.hub.crashed == 2, "the second time as it crashed"
    assert victim.done is not None and victim.done.fault is not None
    await world.finish()
