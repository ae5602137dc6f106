"""The signature of a dispatch, and which reports of engines match it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.fleet.dispatches import (
    OVERSHOOT_TOKENS,
    TEMPLATE_TOKENS,
    Bounds,
    Dispatches,
    Mismatch,
)
from inference.link import wire
from inference.link.accounts import Account, Dispatch, LedgerEntry, Usage
from inference.link.values import MAX_TIME_S
from inference.link.workload import ONE_CHOICE, Workload
from tests.inference.samples import REF

pytestmark = pytest.mark.pure

OURS = Dispatches("k" * 40)
MOST = Bounds(100, 50)
ACCOUNT = Account(1, 2, 3.5, "base", 4, 5, (6, 7, 8))
ENGINE, OTHER = 7, 8


def dispatched(account: Account = ACCOUNT, id: str = "r1", attempt: int = 1) -> LedgerEntry:
    """The ledger entry that the engine reports of a request dispatched to it."""
    signed = OURS.signed(account, (id, attempt), "acme/x", credential=ENGINE, most=MOST)
    return LedgerEntry(id, signed, "acme/x", Usage(10, 4, 20, 5), "stop", attempt)


def changed(entry: LedgerEntry, **fields: Any) -> LedgerEntry:
    return msgspec.structs.replace(entry, **fields)


def accounted(entry: LedgerEntry, **fields: Any) -> LedgerEntry:
    return changed(entry, account=msgspec.structs.replace(entry.account, **fields))


def used(**fields: int) -> LedgerEntry:
    entry = dispatched()
    return changed(entry, usage=msgspec.structs.replace(entry.usage, **fields))


def test_what_was_dispatched_is_billed() -> None:
    for entry in (dispatched(), dispatched(attempt=2), dispatched(Account(1, 2, 3.5, "base"))):
        assert OURS.mismatch(entry, ENGINE) is None


def test_another_gateway_verifies_the_dispatch() -> None:
    """Also after days in the journal: verification needs only the key."""
    message = wire.encode(wire.UsageReport("j", [dispatched()]))
    report = wire.decode(message)
    assert isinstance(report, wire.UsageReport)
    assert Dispatches("k" * 40).mismatch(report.entries[0], ENGINE) is None
    assert Dispatches("l" * 40).mismatch(report.entries[0], ENGINE) is Mismatch.NOT_DISPATCHED


FORGED: dict[str, LedgerEntry] = {
    "request": changed(dispatched(), id="r2"),
    "attempt": changed(dispatched(), attempt=2),
    "model": changed(dispatched(), model="acme/y"),
    "tenant": accounted(dispatched(), tenant_id=9),
    "key": accounted(dispatched(), key_id=9),
    "time": accounted(dispatched(), started_at=4.5),
    "base model": accounted(dispatched(), base_model="other"),
    "adapter": accounted(dispatched(), adapter_id=9),
    "no adapter": accounted(dispatched(), adapter_id=None),
    "version": accounted(dispatched(), version_id=9),
    "price": accounted(dispatched(), price=(0, 0, 0)),
    "route": accounted(dispatched(), route="auto"),
    "no price": accounted(dispatched(), price=None),
    "bounds": accounted(dispatched(), dispatch=Dispatch(ENGINE, 10**9, 10**9, b"x" * 16)),
    "engine": accounted(dispatched(), dispatch=Dispatch(OTHER, *MOST, b"x" * 16)),
    "nothing": accounted(dispatched(), dispatch=Dispatch(ENGINE, *MOST, b"")),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_changed_dispatch_is_not_accepted(what: str) -> None:
    assert OURS.mismatch(FORGED[what], ENGINE) is Mismatch.NOT_DISPATCHED


def test_each_named_field_of_the_account_is_signed() -> None:
    """A field that is added to `Account` later must be listed here or be signed."""
    signed = {
        "tenant_id",
        "key_id",
        "started_at",
        "base_model",
        "adapter_id",
        "version_id",
        "price",
        "overflow",
        "route",
    }
    for_people_alone = {"given_s", "trace_id"}
    assert set(Account.__struct_fields__) == signed | for_people_alone | {"dispatch"}


def test_a_signature_does_not_hold_for_greater_bounds() -> None:
    entry = dispatched()
    dispatch = entry.account.dispatch
    assert dispatch is not None
    for fields in ({"output_tokens": 51}, {"prompt_tokens": 101}, {"credential": OTHER}):
        forged = accounted(entry, dispatch=msgspec.structs.replace(dispatch, **fields))
        assert OURS.mismatch(forged, ENGINE) is Mismatch.NOT_DISPATCHED
        assert OURS.mismatch(forged, OTHER) is Mismatch.NOT_DISPATCHED


def test_an_engine_cannot_bill_another_engines_request() -> None:
    assert OURS.mismatch(dispatched(), OTHER) is Mismatch.ANOTHER_ENGINE


@pytest.mark.parametrize(
    "fields",
    [
        {"completion_tokens": 10**9},
        {"completion_tokens": 51},
        {"prompt_tokens": 101},
        {"reasoning_tokens": 51},
    ],
)
def test_usage_beyond_the_requests_bounds_is_not_billed(fields: dict[str, int]) -> None:
    assert OURS.mismatch(used(**fields), ENGINE) is Mismatch.OVER_BOUNDS


@pytest.mark.parametrize(
    "fields",
    [
        {"completion_tokens": -1},
        {"prompt_tokens": -10, "cached_tokens": -20},
        {"cached_tokens": 11},
        {"cached_tokens": -1},
        {"reasoning_tokens": -1},
    ],
)
def test_impossible_figures_are_told_apart(fields: dict[str, int]) -> None:
    assert OURS.mismatch(used(**fields), ENGINE) is Mismatch.MALFORMED


def test_impossible_attempts_and_inheritances_are_told_apart() -> None:
    for forged in (changed(dispatched(), attempt=0), changed(dispatched(), inherited_tokens=-1)):
        assert OURS.mismatch(forged, ENGINE) is Mismatch.MALFORMED
    inherited = changed(dispatched(), inherited_tokens=51)
    assert OURS.mismatch(inherited, ENGINE) is Mismatch.OVER_BOUNDS


def test_usage_without_a_signature_is_not_billed() -> None:
    entry = LedgerEntry("r1", ACCOUNT, "acme/x", Usage(10, 4, 20), "stop")
    assert OURS.mismatch(entry, ENGINE) is Mismatch.UNSIGNED


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"max_tokens": 16}, Bounds(1000, 16 + OVERSHOOT_TOKENS)),
        ({"max_tokens": None}, Bounds(1000, 1000 + OVERSHOOT_TOKENS)),
        ({"max_tokens": 5000}, Bounds(1000, 1000 + OVERSHOOT_TOKENS)),
        ({"max_tokens": 16, "choices": 6, "prompts": 2}, Bounds(2000, 6 * (16 + OVERSHOOT_TOKENS))),
        ({"max_tokens": -1}, Bounds(1000, OVERSHOOT_TOKENS)),
    ],
)
def test_bounds_follow_from_the_request_and_the_engines_context(
    options: dict[str, Any], most: Bounds
) -> None:
    assert Bounds.of(b"x" * 10, 1000, Workload(**options)) == most


def test_an_engine_with_an_endless_context_gets_no_endless_bounds() -> None:
    most = Bounds.of(b"x" * 10, 10**18, Workload(max_tokens=16))
    assert most.prompt_tokens == TEMPLATE_TOKENS + 40
    most = Bounds.of(b"x" * 10, 10**18, ONE_CHOICE)
    assert most.output_tokens < 1 << 25
    assert Bounds.of(b"", -1, ONE_CHOICE) == Bounds(0, OVERSHOOT_TOKENS)


numbers = st.integers(-(10**10), 10**10)


@given(
    st.builds(
        Usage, numbers, numbers, numbers, numbers, st.floats(), st.floats(), st.floats() | st.none()
    ),
    st.builds(Bounds, st.integers(0, 9999), st.integers(0, 9999)),
)
def test_a_clamped_usage_is_one_that_could_be(usage: Usage, most: Bounds) -> None:
    clamped = most.clamped(usage)
    assert 0 <= clamped.cached_tokens <= clamped.prompt_tokens <= most.prompt_tokens
    assert 0 <= clamped.reasoning_tokens <= clamped.completion_tokens <= most.output_tokens
    times = (clamped.queue_s, clamped.load_s, clamped.ttft_s or 0.0, clamped.total_s)
    assert all(0 <= one <= MAX_TIME_S for one in times)
    assert (clamped.ttft_s is None) == (usage.ttft_s is None)
    assert most.clamped(clamped) is clamped


def test_a_ticket_is_of_one_engine_and_one_adapter() -> None:
    ref = OURS.ticketed(REF, ENGINE)
    assert (ref.name, ref.digest) == (REF.name, REF.digest)
    assert OURS.may_fetch(REF.digest, ENGINE, ref.ticket)
    assert not OURS.may_fetch(REF.digest, OTHER, ref.ticket)
    assert not OURS.may_fetch("b" * 64, ENGINE, ref.ticket)
    assert not Dispatches("l" * 40).may_fetch(REF.digest, ENGINE, ref.ticket)
    for wrong in ("", "é", ref.ticket[:-1], REF.ticket):
        assert not OURS.may_fetch(REF.digest, ENGINE, wrong)
