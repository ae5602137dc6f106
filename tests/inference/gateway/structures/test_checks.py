"""Checks of answers: their order, their bounds, and the process that they run in."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.gateway.structures.checks import PAUSE, StructureChecks
from inference.gateway.structures.child import CPU_S, StructureResult, StructureTask
from inference.gateway.structures.process import KILLED, CheckingProcess
from inference.gateway.structures.recording import StructureRecording
from inference.link.accounts import Usage
from inference.link.wire import Delta, Done
from inference.operations.chat import CHAT
from inference.operations.structure import AskedStructure, FinishedAnswer, StructureOutcome

CONFORMED, MALFORMED, UNCHECKED = StructureOutcome
SLOW = "slow"
BODY = {
    "model": "base",
    "messages": [{"role": "user", "content": "Hello"}],
    "response_format": {"type": "json_object"},
}


class Played(CheckingProcess):
    """Answers that say `slow` take long; each waits for the test, if `held`."""

    def __init__(self) -> None:
        super().__init__()
        self.held = asyncio.Event()
        self.held.set()
        self.asked: list[str] = []

    async def check(self, task: StructureTask) -> StructureResult:
        self.asked.append(task.answer.text)
        await self.held.wait()
        if task.answer.text == "crash":
            raise ValueError
        return KILLED if task.answer.text == SLOW else StructureResult(CONFORMED, 0.001)


@pytest.fixture
def process() -> Iterator[CheckingProcess]:
    made = CheckingProcess()
    yield made
    made.close()


def begun(checks: StructureChecks, text: str, tenant_id: int = 1) -> StructureRecording:
    recording = checks.begin(tenant_id, CHAT.parse(json.dumps(BODY).encode()))
    assert recording is not None
    recording.add(Delta("r", text, 1))
    recording.end(Done("r", Usage(), "stop"))
    return recording


def outcome(recording: StructureRecording) -> StructureOutcome | None:
    found: list[StructureOutcome | None] = []
    recording.on_outcome(found.append)
    return found[0]


async def test_a_call_without_a_structure_is_not_recorded() -> None:
    plain = {name: value for name, value in BODY.items() if name != "response_format"}
    assert StructureChecks().begin(1, CHAT.parse(json.dumps(plain).encode())) is None


async def test_a_slow_check_pauses_its_tenant() -> None:
    played, now = Played(), [100.0]
    checks = StructureChecks(process=played, clock=lambda: now[0])
    made = [begun(checks, SLOW), begun(checks, "next"), begun(checks, "other", 2)]
    await checks.finish(60)
    made.append(begun(checks, "later"))
    assert [outcome(one) for one in made] == [UNCHECKED, UNCHECKED, CONFORMED, UNCHECKED]
    assert played.asked == [SLOW, "other"]
    now[0] += PAUSE * CPU_S
    again = begun(checks, "again")
    await checks.finish(60)
    assert outcome(again) == CONFORMED and checks.room.total == 0


async def test_a_tenant_may_have_a_quarter_of_what_waits() -> None:
    played = Played()
    played.held.clear()
    checks = StructureChecks(process=played, most=8)
    made = [begun(checks, "one", tenant) for tenant in (1, 1, 1, 2)]
    played.held.set()
    await checks.finish(60)
    assert [outcome(one) for one in made] == [CONFORMED, CONFORMED, UNCHECKED, CONFORMED]


async def test_a_crashed_check_ends_alone() -> None:
    checks = StructureChecks(process=Played())
    made = [begun(checks, "crash"), begun(checks, "next")]
    await checks.finish(60)
    assert [outcome(one) for one in made] == [UNCHECKED, CONFORMED]


async def test_what_takes_too_long_at_the_end_is_given_up() -> None:
    played = Played()
    played.held.clear()
    checks = StructureChecks(process=played)
    made = [begun(checks, "one"), begun(checks, "two")]
    await asyncio.sleep(0)
    await checks.finish(0)
    await asyncio.sleep(0)
    assert [outcome(one) for one in made] == [UNCHECKED, UNCHECKED] and checks.room.total == 0


# --- The process ---------------------------------------------------------------------------------


def task(schema: object, text: str) -> StructureTask:
    outputs = json.dumps({"json": schema}).encode()
    return StructureTask(AskedStructure(outputs=outputs), FinishedAnswer(text))


async def test_an_endless_check_is_killed_and_the_next_one_runs(process: CheckingProcess) -> None:
    endless = task({"pattern": "^(a+)+$"}, json.dumps("a" * 60 + "b"))
    doubled = {"anyOf": [{"$ref": "#/$defs/1"}, {"$ref": "#/$defs/1"}]}
    pairs = {
        str(at): {"anyOf": [{"$ref": f"#/$defs/{at + 1}"}] * 2 + [{"type": "null"}]}
        for at in range(1, 60)
    }
    exponential = task(doubled | {"$defs": pairs | {"60": {"type": "null"}}}, "1")
    assert (await process.check(task({}, "1"))).outcome == CONFORMED
    for hostile in (endless, exponential):
        assert await process.check(hostile) == KILLED
        assert (await process.check(task({"type": "null"}, "1"))).outcome == MALFORMED


async def test_the_process_has_no_secret(
    process: CheckingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORIKEET_SECRET_KEY", "canary")
    await process.check(task({}, "1"))
    assert process.pid is not None and process.pid != os.getpid()
    environ = Path(f"/proc/{process.pid}/environ")
    assert b"canary" not in await asyncio.to_thread(environ.read_bytes)


async def test_it_starts_again_after_an_end(process: CheckingProcess) -> None:
    assert process.pid is None
    await process.check(task({}, "1"))
    process.close()
    assert (await process.check(task({}, "no JSON"))).outcome == MALFORMED
