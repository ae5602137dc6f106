"""The frames that an agent holds for a gateway that reads slowly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.outbox import (
    MAX_CHUNK_BYTES,
    MAX_SERVED,
    STEP_BYTES,
    Outbox,
    residency_change,
    steps_of,
    too_long,
)
from inference.errors import EngineFailed
from inference.gateway.routing.engine_state import EngineState
from inference.link import wire
from inference.link.accounts import Usage
from inference.link.engine_info import EngineStats
from inference.link.wire import Delta, Done, Error, Fault, Frame, Stats, Step, Wait, Waits
from tests.inference.samples import MODEL

pytestmark = pytest.mark.pure


def test_deltas_of_a_step_leave_together_before_everything_else() -> None:
    outbox = Outbox()
    outbox.put(Done("z", Usage()))
    outbox.add(Delta("a", "1", 1))
    outbox.add(Delta("b", "2", 1))
    outbox.put(Done("a", Usage()))
    assert outbox.take() == [
        Step([Delta("a", "1", 1), Delta("b", "2", 1)]),
        Done("z", Usage()),
        Done("a", Usage()),
    ]
    assert not outbox
    assert outbox.take() == []


def test_memory_does_not_grow_with_the_number_of_steps() -> None:
    outbox = Outbox()
    for step in range(10_000):
        outbox.add(Delta("a", "x", 1))
        outbox.put(Stats(EngineStats(running=step)))
    step_frame, stats = outbox.take()
    assert step_frame == Step([Delta("a", "x" * 10_000, 10_000)])
    assert stats == Stats(EngineStats(running=9_999))


def test_what_a_request_waits_for_leaves_before_its_output_and_only_as_it_is_now() -> None:
    outbox = Outbox()
    outbox.add(Delta("b", "1", 1))
    outbox.note(Wait("a", "queued", 2))
    outbox.note(Wait("b", "prefill"))
    outbox.note(Wait("a", "queued", 1))
    assert outbox.take() == [
        Waits([Wait("a", "queued", 1), Wait("b", "prefill")]),
        Step([Delta("b", "1", 1)]),
    ]
    assert not outbox


def test_two_attempts_of_a_request_stay_apart() -> None:
    outbox = Outbox()
    outbox.add(Delta("a", "1", 1))
    outbox.add(Delta("a", "2", 1, attempt=2))
    outbox.note(Wait("a", "queued", 1))
    outbox.note(Wait("a", "queued", 2, attempt=2))
    assert outbox.take() == [
        Waits([Wait("a", "queued", 1), Wait("a", "queued", 2, attempt=2)]),
        Step([Delta("a", "1", 1), Delta("a", "2", 1, attempt=2)]),
    ]


def sizes(frames: list[Frame]) -> list[int]:
    return [len(wire.encode(frame)) for frame in frames]


def test_many_streams_of_one_step_leave_in_frames_of_bounded_size() -> None:
    outbox = Outbox()
    deltas = [Delta(f"r{i}", chunks=[b"x" * 50_000] * 4, tokens=4) for i in range(300)]
    for delta in deltas:
        outbox.add(delta)
    frames = outbox.take()
    assert max(sizes(frames)) <= STEP_BYTES
    assert [delta for frame in frames for delta in frame.deltas] == deltas  # type: ignore[attr-defined]


CHOICES = st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, 99_999), max_size=50))


def whole(pieces: list[Delta]) -> Delta:
    """All pieces merged into one."""
    first, *others = pieces
    for piece in others:
        first = first.merged(piece)
    return first


@given(st.text(max_size=20), st.integers(1, 60_000), st.lists(st.integers(0, 300_000), max_size=5))
def test_what_was_merged_while_a_gateway_was_slow_is_cut(
    text: str, times: int, chunks: list[int]
) -> None:
    bodies = [bytes([65 + i]) * size for i, size in enumerate(chunks)]
    delta = Delta("a", text * times, 7, bodies, 5, 2, attempt=3)
    steps = list(steps_of([delta, Delta("b", "other")]))
    assert max(sizes(steps)) <= STEP_BYTES  # type: ignore[arg-type]
    *pieces, last = [piece for step in steps for piece in step.deltas]
    assert last == Delta("b", "other")
    assert whole(pieces) == delta


@given(
    st.lists(st.tuples(st.text(max_size=9), st.integers(0, 90_000), CHOICES), max_size=20),
    st.integers(1, 50),
)
def test_merged_text_and_tokens_travel_together(
    gained: list[tuple[str, int, dict[int, list[int]]]], times: int
) -> None:
    """After each delta, and so after each frame, the text sent is that of the tokens sent."""
    deltas = [
        Delta("a", text, 1, [b"x" * size], ids={0: [at]} | ids)
        for at, (text, size, ids) in enumerate(gained * times)
    ]
    outbox, before = Outbox(), list[Delta]()
    for delta in deltas:
        outbox.add(delta)
    frames = outbox.take()
    assert all(size <= STEP_BYTES for size in sizes(frames))
    for frame in frames:
        assert isinstance(frame, Step)
        for piece in frame.deltas:
            before.append(piece)
            assert whole(before) == whole(deltas[: sum(one.tokens for one in before)])
    assert sum(one.tokens for one in before) == len(deltas)


def test_a_delta_with_tokens_is_not_cut_however_long() -> None:
    delta = Delta("a", "x" * STEP_BYTES, 1, [b"y" * STEP_BYTES] * 3, ids={0: [1], 1: [2]})
    outbox = Outbox()
    outbox.add(delta)
    outbox.add(Delta("a", tokens=1))
    outbox.add(delta)
    steps = outbox.take()
    assert steps == [Step([delta.merged(Delta("a", tokens=1))]), Step([delta])]


def test_a_chunk_that_fits_no_frame_is_named_before_it_is_sent() -> None:
    longest = Delta("a", chunks=[b"x" * MAX_CHUNK_BYTES])
    assert too_long(longest) is None
    assert too_long(Delta("a", "x" * (MAX_CHUNK_BYTES + 1))) is None, "a text is cut"
    *_, step = steps_of([longest])
    assert len(wire.encode(step)) < wire.MAX_FRAME_BYTES
    error = too_long(Delta("a", chunks=[b"", b"x" * (MAX_CHUNK_BYTES + 1)]))
    assert error is not None and f"{MAX_CHUNK_BYTES + 1} bytes" in error.message


def test_the_service_of_many_tenants_leaves_in_several_frames() -> None:
    outbox, gained = Outbox(), {f"tenant-{i}": float(i) for i in range(2 * MAX_SERVED + 1)}
    outbox.put(Stats(EngineStats(running=1), gained=gained))
    frames = outbox.take()
    assert len(frames) == 3
    together: dict[str, float] = {}
    for frame in frames:
        assert isinstance(frame, Stats) and frame.stats.running == 1
        together |= frame.gained
    assert together == gained


def test_gains_are_summed_until_they_are_sent() -> None:
    outbox = Outbox()
    outbox.put(Stats(EngineStats(), gained={"acme": 1.0, "globex": 2.0}, asks=False))
    outbox.put(Stats(EngineStats(running=1), gained={"acme": 3.0}, asks=True))
    together = Stats(EngineStats(running=1), gained={"acme": 4.0, "globex": 2.0}, asks=True)
    assert outbox.take() == [together]


def test_an_error_is_the_last_word() -> None:
    outbox, error = Outbox(), Error(Fault.of(EngineFailed()))
    outbox.put(error)
    assert outbox
    outbox.put(Stats(EngineStats()))
    outbox.put(Done("a", Usage()))
    assert outbox.take() == [Done("a", Usage()), Stats(EngineStats()), error]
    assert not outbox


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(st.lists(NAMES))
def test_residency_changes_reproduce_the_residency(states: list[list[str]]) -> None:
    peer, told = EngineState("e", MODEL), list[str]()
    for now in states:
        loaded, evicted = residency_change(told, now)
        peer.note(Stats(EngineStats(), loaded=loaded, evicted=evicted))
        assert list(peer.resident) == now
        told = now


def test_only_what_changed_is_told() -> None:
    assert residency_change(["a", "b", "c"], ["a", "b", "c"]) == ([], [])
    assert residency_change(["a", "b", "c"], ["b", "c", "d"]) == (["d"], ["a"])
    assert residency_change(["a", "b", "c"], ["b", "c", "a"]) == (["a"], []), "used again"
