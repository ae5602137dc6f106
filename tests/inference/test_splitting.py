"""Which version of a split a request gets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from inference.interfaces.directory import ResolvedTarget, SplitArm, TrafficSplit
from inference.splitting import (
    KEY_BYTES,
    MAX_VALUE_BYTES,
    Arrival,
    StickyBy,
    choose,
    place,
    shadow_target,
    stay,
)

pytestmark = pytest.mark.pure

STABLE, CANDIDATE = 1, 2
KEY = 3


def target(weight: int = 50, sticky: str = "user", header: str = "", id: int = 7) -> ResolvedTarget:
    candidate = ResolvedTarget("support", "base", version_id=CANDIDATE)
    split = TrafficSplit(id, weight, sticky, header, candidate)
    return ResolvedTarget("support", "base", version_id=STABLE, split=split)


def in_shadow(weight: int = 50) -> ResolvedTarget:
    whole = target(weight)
    assert whole.split is not None
    return replace(whole, split=replace(whole.split, copies_to=KEY))


def version(found: ResolvedTarget) -> int | None:
    assert found.split is None
    return found.version_id


def test_without_a_split_nothing_is_chosen() -> None:
    plain = ResolvedTarget("support", "base", version_id=STABLE)
    assert choose(plain, Arrival("r")) is plain
    assert stay(plain, CANDIDATE, Arrival("r")) is plain


@pytest.mark.parametrize(
    ("sticky", "header", "same"),
    [
        ("user", "", {"user": "ada"}),
        ("safety_identifier", "", {"safety_identifier": "ada"}),
        ("header", "x-team", {"headers": {b"x-team": b"ada"}}),
        ("conversation", "", {"conversation": "Hello"}),
    ],
)
def test_a_key_always_gets_the_same_version(sticky: str, header: str, same: dict[str, Any]) -> None:
    whole = target(sticky=sticky, header=header)
    found = [choose(whole, Arrival(str(number), **same)) for number in range(50)]
    assert len({version(one) for one in found}) == 1
    assert len({one.arm and one.arm.key for one in found}) == 1 and found[0].arm is not None
    assert found[0].arm.key == place(7, b"ada" if sticky != "conversation" else b"Hello")


@pytest.mark.parametrize("sticky", [*StickyBy])
def test_without_its_key_a_request_is_chosen_for_itself(sticky: str) -> None:
    whole = target(sticky=sticky, header="x-team")
    found = [choose(whole, Arrival(str(number))) for number in range(50)]
    assert {version(one) for one in found} == {STABLE, CANDIDATE}
    assert all(one.arm is not None and one.arm.key is None for one in found)
    again = [choose(whole, Arrival(str(number))) for number in range(50)]
    assert again == found


@given(st.text(min_size=1, max_size=20), st.integers(0, 99), st.integers(0, 99))
def test_a_key_stays_with_the_candidate_when_the_weight_grows(
    user: str, one: int, other: int
) -> None:
    less, more = sorted((one, other))
    if version(choose(target(less), Arrival("r", user))) == CANDIDATE:
        assert version(choose(target(more), Arrival("r", user))) == CANDIDATE


@pytest.mark.parametrize("weight", [1, 10, 50, 99])
def test_the_candidate_gets_the_share_of_the_weight(weight: int) -> None:
    whole = target(weight)
    found = [version(choose(whole, Arrival("r", f"user {n}"))) for n in range(20_000)]
    assert found.count(CANDIDATE) / len(found) == pytest.approx(weight / 100, abs=0.012)


def test_a_weight_of_nothing_gives_the_candidate_nothing() -> None:
    assert {version(choose(target(0), Arrival("r", str(n)))) for n in range(200)} == {STABLE}


def test_splits_are_independent() -> None:
    users = [str(number) for number in range(4000)]
    one, other = (
        {user for user in users if version(choose(target(id=id), Arrival("r", user))) == CANDIDATE}
        for id in (1, 2)
    )
    assert len(one & other) / len(users) == pytest.approx(0.25, abs=0.03)


def test_a_long_value_counts_by_its_beginning() -> None:
    assert place(1, b"x" * MAX_VALUE_BYTES) == place(1, b"x" * 60_000) < 1 << 8 * KEY_BYTES


@pytest.mark.parametrize("version_id", [STABLE, CANDIDATE])
def test_a_request_that_has_begun_keeps_its_version(version_id: int) -> None:
    for user in map(str, range(20)):
        found = stay(target(), version_id, Arrival("r", user))
        assert version(found) == version_id and found.arm is not None
        assert found.arm.candidate == (version_id == CANDIDATE)
        assert found.arm.key == place(7, user.encode())


def test_a_version_that_the_split_lacks_is_chosen_anew() -> None:
    arrival = Arrival("r", "ada")
    assert stay(target(), 3, arrival) == stay(target(), None, arrival) == choose(target(), arrival)


def test_a_shadow_has_the_stable_version_answer_all() -> None:
    """The requests whose key would be the candidate's are to be copied."""
    for number in range(50):
        arrival = Arrival("r", str(number))
        would = version(choose(target(), arrival)) == CANDIDATE
        for found in (choose(in_shadow(), arrival), stay(in_shadow(), CANDIDATE, arrival)):
            assert version(found) == STABLE
            assert found.arm == (SplitArm(7, False, None, 50, KEY) if would else None)


def test_a_copy_goes_to_the_candidate_of_its_shadow_alone() -> None:
    found = shadow_target(in_shadow(), 7)
    assert found is not None and version(found) == CANDIDATE
    assert found.arm == SplitArm(7, True, None, 50)
    assert shadow_target(in_shadow(), 8) is None
    assert shadow_target(target(), 7) is None, "it is a split"
    assert shadow_target(ResolvedTarget("support", "base"), 7) is None
