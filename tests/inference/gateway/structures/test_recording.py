"""The recorded answer of a request that asks for a structure."""

from __future__ import annotations

import pytest

from inference.gateway.structures.recording import (
    MAX_BYTES,
    STEP_BYTES,
    StructureRecording,
)
from inference.link.accounts import Usage
from inference.link.wire import Delta, Done
from inference.operations.structure import AskedStructure, FinishedAnswer, StructureOutcome
from inference.shared_capacity import SharedCapacity

pytestmark = pytest.mark.pure

FORMAT, TOOLS = AskedStructure(format=b'"json"'), AskedStructure(tools=b'"name"')
DONE = Done("r", Usage(1, 0, 1), "stop")
CALL = b'{"tool_calls":[]}'


class Noted:
    """Checks that keep what they are given."""

    def __init__(self, room: int = 64 << 20) -> None:
        self.room = SharedCapacity[int](room)
        self.answers: list[FinishedAnswer] = []

    def take(self, tenant_id: int, amount: int) -> bool:
        return self.room.take(tenant_id, amount)

    def give_back(self, tenant_id: int, amount: int) -> None:
        self.room.give_back(tenant_id, amount)

    def check(self, recording: StructureRecording) -> None:
        self.answers.append(recording.answer)
        recording.tell(StructureOutcome.CONFORMED)


def outcomes(recording: StructureRecording) -> list[StructureOutcome | None]:
    found: list[StructureOutcome | None] = []
    recording.on_outcome(found.append)
    return found


def test_an_answer_of_text() -> None:
    checks = Noted()
    recording = StructureRecording(checks, 1, FORMAT)
    for text in ("a", "", "b"):
        recording.add(Delta("r", text, 1))
    found = outcomes(recording)
    assert checks.room.total == STEP_BYTES and found == []
    recording.end(DONE)
    assert checks.answers == [FinishedAnswer("ab", [], "stop")]
    assert found == outcomes(recording) == [StructureOutcome.CONFORMED]
    assert checks.room.total == 0


def test_an_answer_of_chunks_and_a_whole_one() -> None:
    checks = Noted()
    recording = StructureRecording(checks, 1, FORMAT)
    recording.add(Delta("r", "", 1, [b"{1}", b"{2}"]))
    recording.end(DONE)
    recording = StructureRecording(checks, 1, FORMAT)
    recording.end(Done("r", Usage(), None, b"{}"))
    assert [one.parts for one in checks.answers] == [[b"{1}", b"{2}"], [b"{}"]]


def test_without_tool_calls_there_is_nothing_to_check() -> None:
    checks = Noted()
    for parts, checked in ([], 0), ([b"{}"], 0), ([b"{}", CALL], 1):
        recording = StructureRecording(checks, 1, TOOLS)
        recording.add(Delta("r", "", 1, parts))
        recording.end(DONE)
        assert len(checks.answers) == checked
        assert outcomes(recording) == [StructureOutcome.CONFORMED if checked else None]


@pytest.mark.parametrize("room", [64 << 20, STEP_BYTES])
def test_what_is_too_large_is_not_kept(room: int) -> None:
    checks = Noted(room)
    recording = StructureRecording(checks, 1, FORMAT)
    recording.add(Delta("r", "", 1, [b"x" * MAX_BYTES]))
    assert checks.room.total == 0
    recording.add(Delta("r", "more", 1))
    recording.end(DONE)
    assert outcomes(recording) == [StructureOutcome.UNCHECKED] and not checks.answers


def test_a_dropped_one_frees_its_room() -> None:
    checks = Noted()
    recording = StructureRecording(checks, 1, FORMAT)
    recording.drop()
    recording.tell(StructureOutcome.CONFORMED)
    assert outcomes(recording) == [None] and checks.room.total == 0
