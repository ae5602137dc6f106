"""The progress that an agent reports of watched requests, and that it reports none of others."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from inference.agent.job import Job
from inference.agent.jobs.progress import Progress
from inference.agent.link import AgentLink
from inference.agent.scheduler.lane import QueuedRequest
from inference.agent.scheduler.queue import Queue
from inference.agent.scheduler.slots import Slots
from inference.link import wire
from inference.link.wire import Wait

pytestmark = pytest.mark.pure


class Heard:
    """The part of a link that `Progress` uses."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []

    def note(self, wait: Wait) -> None:
        self.waits.append(wait)


class Room:
    """A `Progress` over a queue with one place, and jobs that the test advances."""

    def __init__(self) -> None:
        self.link, self.queue = Heard(), Queue(Slots(active=1, resident=1), max_running=1)
        self.watch = Progress(self.queue)

    def job(self, id: str, *, watched: bool = True) -> Job:
        job = Job(wire.Submit(id, "chat", b"", "m", "acme", "salt"), cast(AgentLink, self.link))
        if watched:
            self.watch.add(job)
        return job

    def queued(self, id: str, **options: Any) -> Job:
        job = self.job(id, **options)
        self.queue.push(QueuedRequest(id, "acme", None), 0.0)
        job.turn = cast(Any, object())
        return job


@pytest.fixture
def room() -> Room:
    return Room()


def test_each_phase_is_told_once(room: Room) -> None:
    job = room.job("a")
    room.watch.moved(job)
    room.queue.push(QueuedRequest("a", "acme", None), 0.0)
    job.turn = cast(Any, object())
    for moment in ("", "admitted_at", "submitted_at", "first_token_at"):
        if moment:
            setattr(job, moment, 1.0)
        room.watch.moved(job)
        room.watch.check()
    said = [("fetching", 0), ("queued", 1), ("loading", 0), ("prefill", 0)]
    assert [(wait.phase, wait.place) for wait in room.link.waits] == said


def test_queue_positions_are_reported_as_they_change(room: Room) -> None:
    for id in ("a", "b"):
        room.queued(id)
    room.watch.check()
    room.queue.finish("a", 0.0)
    room.watch.check()
    assert room.link.waits == [
        Wait("a", "queued", 1),
        Wait("b", "queued", 2),
        Wait("b", "queued", 1),
    ]


def test_unwatched_and_ended_requests_are_not_reported(room: Room) -> None:
    plain, ended, orphan = room.queued("a", watched=False), room.queued("b"), room.queued("c")
    orphan.link = None
    room.watch.discard(ended)
    for job in (plain, ended, orphan):
        room.watch.moved(job)
    room.watch.check()
    assert room.link.waits == []


def test_agents_and_gateways_of_other_versions_understand_a_submit() -> None:
    submit = wire.Submit("r1", "chat", b"{}", "m", "acme", "salt", watched=True)
    fields = msgspec.msgpack.decode(wire.encode(submit))
    known = 1 + wire.Submit.__struct_fields__.index("watched")  # the tag comes first
    older = msgspec.msgpack.encode(fields[:known])
    newer = msgspec.msgpack.encode([*fields, "more"])
    assert wire.decode(older) == msgspec.structs.replace(submit, watched=False)
    assert wire.decode(newer) == submit
