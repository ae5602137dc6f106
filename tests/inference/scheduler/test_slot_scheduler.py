"""Which waiting adapters get a slot, and which ones give theirs up."""

from __future__ import annotations

import pytest

from inference.agent.scheduler.slot_scheduler import SlotScheduler
from inference.agent.scheduler.slots import Slots

pytestmark = pytest.mark.pure

MIN_OPEN_S = 1.0


def scheduler(active: int, quota: int | None = None) -> SlotScheduler:
    return SlotScheduler(Slots(active=active, resident=active), quota=quota, min_open_s=MIN_OPEN_S)


def test_an_adapter_with_a_slot_is_open_and_the_base_model_needs_none() -> None:
    t = scheduler(1)
    assert t.open_to(None)
    assert not t.open_to("A")
    assert t.free_for("A")
    assert t.start(None, "acme", 0.0) == []
    assert t.start("A", "acme", 0.0) == ["A"]
    assert t.start("A", "acme", 0.0) == []
    assert t.open_to("A")
    assert not t.free_for("B")
    assert t.finish(None) == []
    assert t.finish("A") == []
    assert t.finish("A") == []
    assert t.free_for("B")


def test_a_slot_that_was_emptied_for_one_goes_to_nobody_else() -> None:
    t = scheduler(1)
    t.start("A", "acme", 0.0)
    assert t.ask("B", "acme", MIN_OPEN_S, impatient=True)
    assert not t.open_to("A")
    assert not t.free_for("A")
    assert t.ask("A", "acme", MIN_OPEN_S, impatient=True), "it has to leave before it may ask"
    assert t.finish("A") == ["B"]
    assert t.open_to("B")
    assert not t.free_for("A")
    assert not t.free_for("C")
    assert t.start("B", "acme", MIN_OPEN_S) == ["B"]


def test_no_slot_closes_for_a_patient_request_or_before_min_open_s() -> None:
    t = scheduler(1)
    t.start("A", "acme", 0.0)
    assert not t.ask("B", "acme", MIN_OPEN_S, impatient=False)
    assert not t.ask("B", "acme", MIN_OPEN_S - 0.1, impatient=True)
    assert t.open_to("A")
    assert t.ask("B", "acme", MIN_OPEN_S, impatient=True)
    assert not t.ask("C", "acme", MIN_OPEN_S, impatient=True), "there is nothing left to close"


def test_giving_up_a_claim_reopens_the_slot() -> None:
    t = scheduler(1)
    t.start("A", "acme", 0.0)
    t.ask("B", "acme", MIN_OPEN_S, impatient=True)
    assert t.forget("B") == ["A"]
    assert t.open_to("A")
    t.ask("B", "acme", MIN_OPEN_S, impatient=True)
    t.finish("A")
    assert t.forget("B") == []
    assert t.free_for("C"), "the promise is off"


def test_finding_another_slot_reopens_the_claimed_one() -> None:
    t = scheduler(2)
    t.start("A", "acme", 0.0)
    t.start("A", "acme", 0.0)
    t.start("B", "acme", 0.0)
    assert t.ask("C", "acme", MIN_OPEN_S, impatient=True)
    assert not t.open_to("B"), "it runs fewest"
    t.finish("A")
    t.finish("A")
    assert t.start("C", "acme", MIN_OPEN_S) == ["C", "B"]


def test_the_tenant_with_most_slots_gives_one_up() -> None:
    t = scheduler(3)
    t.start("A", "acme", 0.0)
    for adapter in ("X", "Y", "X", "Y"):
        t.start(adapter, "flood", 0.0)
    assert t.ask("B", "globex", MIN_OPEN_S, impatient=True)
    assert not t.open_to("X")
    assert t.open_to("A")


def test_over_its_quota_a_tenant_makes_way_at_once() -> None:
    t = scheduler(3, quota=2)
    for adapter in ("X", "Y", "Z"):
        t.start(adapter, "flood", 0.0)
    assert t.at_quota("flood")
    assert not t.at_quota("acme")
    assert t.ask("A", "acme", 0.0, impatient=False)
    assert not t.open_to("X")
    assert not t.ask("B", "globex", 0.0, impatient=False), "it is at its quota now, not over it"


def test_a_claim_above_the_quota_passes_to_another_tenant() -> None:
    t = scheduler(2, quota=1)
    for adapter in ("X", "Y", "Y"):
        t.start(adapter, "flood", 0.0)
    t.ask("W", "flood", MIN_OPEN_S, impatient=True)
    t.ask("Z", "flood", MIN_OPEN_S, impatient=True)
    assert not t.open_to("X")
    assert not t.open_to("Y")
    assert t.ask("A", "acme", MIN_OPEN_S, impatient=False)
    assert not t.ask("B", "globex", MIN_OPEN_S, impatient=True), "flood has its quota of one now"
    assert t.forget("W") == []
    assert t.finish("X") == ["A"], "it was to be empty first"
    assert t.forget("Z") == ["Y"]


def test_a_slot_promised_above_the_quota_goes_to_another_at_once() -> None:
    t = scheduler(2, quota=1)
    for adapter in ("X", "Y"):
        t.start(adapter, "flood", 0.0)
    t.ask("Z", "flood", MIN_OPEN_S, impatient=True)
    assert t.finish("X") == ["Z"]
    assert t.ask("A", "acme", MIN_OPEN_S, impatient=False)
    assert t.open_to("A")
    assert not t.free_for("Z")


def test_at_its_quota_a_tenant_may_only_close_its_own() -> None:
    t = scheduler(2, quota=1)
    t.start("A", "acme", 0.0)
    t.start("X", "flood", 0.0)
    t.start("X", "flood", 0.0)
    assert t.ask("Y", "flood", MIN_OPEN_S, impatient=True)
    assert t.open_to("A")
    assert not t.open_to("X")


def test_a_quota_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="quota of 0"):
        scheduler(1, quota=0)
