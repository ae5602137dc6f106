"""How frames are encoded for peers of an older protocol version, and how attempts are numbered."""

from __future__ import annotations

import msgspec
import pytest

from inference.link import versions, wire
from inference.link.accounts import (
    ATTEMPTS_OF_A_TURN,
    Account,
    LedgerEntry,
    Usage,
    first_attempt,
    turn_of,
)
from inference.link.engine_info import AdapterRef, EngineStats
from tests.inference.samples import REF

pytestmark = pytest.mark.pure

ACCOUNT = Account(1, 2, 3.5, "base", 4, 5, (6, 7, 8), given_s=1.5, trace_id="ab" * 16)
ENTRY = LedgerEntry("r1", ACCOUNT, "base", Usage(7, 2, 3), "stop", 2)

OLDER = versions.Encoder(
    1,
    frames={wire.Waits: 2},
    fields={
        Account: {"given_s": 2, "trace_id": 2, "overflow": 2, "route": 2},
        EngineStats: {
            "spare": 2, "drafted_tokens": 2, "accepted_tokens": 2, "wait_s": 2, "asleep": 2,
        },
        wire.Fault: {"retry_after_s": 2},
        wire.Stats: {"asks": 2},
    },
)  # fmt: skip
"""For peers of version 1, as if version 2 had added these."""


def without(value: msgspec.Struct, **defaults: object) -> msgspec.Struct:
    return msgspec.structs.replace(value, **defaults)


BARE = without(ENTRY, account=without(ACCOUNT, given_s=0.0, trace_id=""))
FAULT = wire.Fault("a", "b", "c", 1.0)


@pytest.mark.parametrize(
    ("frame", "read"),
    [
        (wire.Heartbeat(), wire.Heartbeat()),
        (wire.Stats(EngineStats(1, spare=3), ["a"], asks=True), wire.Stats(EngineStats(1), ["a"])),
        (wire.UsageReport("j", [ENTRY, ENTRY]), wire.UsageReport("j", [BARE, BARE])),  # type: ignore[list-item]
        (wire.Error(FAULT), wire.Error(without(FAULT, retry_after_s=None))),  # type: ignore[arg-type]
        (wire.Done("r1", Usage()), wire.Done("r1", Usage())),
        (
            wire.Done("r1", Usage(7), "stop", b"{}", FAULT),
            wire.Done("r1", Usage(7), "stop", b"{}", without(FAULT, retry_after_s=None)),  # type: ignore[arg-type]
        ),
    ],
)
def test_an_older_peer_gets_every_field_that_it_knows_and_no_other(
    frame: wire.Frame, read: wire.Frame
) -> None:
    message = OLDER.encode(frame)
    assert message is not None and wire.decode(message) == read
    assert len(message) < len(wire.encode(frame)) or frame == read


def test_a_frame_that_a_peer_does_not_know_is_not_sent() -> None:
    assert OLDER.encode(wire.Waits([])) is None


@pytest.mark.parametrize("version", [None, wire.PROTOCOL_VERSION, wire.PROTOCOL_VERSION + 1])
def test_a_peer_of_the_newest_version_gets_everything(version: int | None) -> None:
    for frame in (wire.UsageReport("j", [ENTRY]), wire.Waits([wire.Wait("r1", "queued", 2)])):
        assert versions.encode(frame, version) == wire.encode(frame)


def test_own_name_is_the_name_without_tenant_and_version() -> None:
    assert AdapterRef("acme/support@0123", REF.digest).own_name == "support"


@pytest.mark.parametrize("turn", [1, 2, 31])
def test_each_turn_of_a_request_has_attempts_of_its_own(turn: int) -> None:
    first = first_attempt(turn)
    assert [turn_of(first), turn_of(first + ATTEMPTS_OF_A_TURN - 1)] == [turn, turn]
    assert turn_of(first - 1) == turn - 1
    assert first_attempt(1) == 1
