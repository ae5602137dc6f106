"""Requests that may have killed an engine. The verdict does not depend on the order of reports."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.link import wire
from inference.link.engine_info import Suspect
from inference.link.suspects import FORGET_S, MAX_DEATHS, MAX_KNOWN, Suspects, digest_of
from tests.inference.samples import REF

pytestmark = pytest.mark.pure

NOW = 1_700_000_000.0


def submit(body: bytes = b"{}", tenant: str = "acme", **fields: object) -> wire.Submit:
    return wire.Submit("r1", "chat", body, "base", tenant, "salt", **fields)  # type: ignore[arg-type]


def test_a_digest_names_who_asks_for_what() -> None:
    frames = [
        submit(),
        submit(b"{ }"),
        submit(tenant="globex"),
        submit(adapter=REF),
        wire.Submit("r1", "completion", b"{}", "base", "acme", "salt"),
    ]
    assert len({digest_of(frame) for frame in frames}) == len(frames)
    again = wire.Submit("r2", "chat", b"{}", "other-name", "acme", "salt", attempt=2, max_tokens=5)
    assert digest_of(again) == digest_of(submit())


def failed(suspects: Suspects, run: str, at: float = NOW, digest: str = "d") -> Suspect:
    return suspects.failed_with(Suspect(digest, tenant="acme", request_id="r1"), run, at)


def test_a_request_is_refused_after_the_failures_of_two_runs() -> None:
    suspects = Suspects()
    assert suspects.failures("d", NOW) == 0
    failed(suspects, "one")
    failed(suspects, "one")
    assert suspects.failures("d", NOW) == 1
    assert suspects.refused(NOW) == []
    known = failed(suspects, "two", NOW + 1)
    assert suspects.failures("d", NOW + 1) == 2
    assert suspects.refused(NOW + 1) == [known]
    assert known == Suspect("d", {"one": NOW, "two": NOW + 1}, 0.0, "acme", "r1")


def test_a_failure_is_forgotten_after_a_while() -> None:
    suspects = Suspects()
    failed(suspects, "one")
    failed(suspects, "two", NOW + 60)
    assert suspects.failures("d", NOW + FORGET_S + 1) == 1
    assert suspects.failures("d", NOW + FORGET_S + 61) == 0
    assert len(suspects.all(NOW + FORGET_S + 1)) == 1
    assert suspects.all(NOW + FORGET_S + 61) == []


def test_failures_dated_hours_ahead_are_ignored() -> None:
    suspects = Suspects()
    for run in ("one", "two"):
        failed(suspects, run, NOW + FORGET_S + 1)
    assert suspects.failures("d", NOW) == 0
    assert suspects.all(NOW) == []


def test_a_request_that_ended_well_is_no_suspect() -> None:
    suspects = Suspects()
    assert suspects.ended_well("d", NOW) is None
    failed(suspects, "one")
    news = suspects.ended_well("d", NOW + 1)
    assert news is not None and news.ended_well_at == NOW + 1
    assert suspects.failures("d", NOW + 1) == 0
    assert suspects.ended_well("d", NOW + 2) is None, "nothing counted any more"
    failed(suspects, "two", NOW + 3)
    assert suspects.failures("d", NOW + 3) == 1


def test_memory_is_bounded() -> None:
    suspects = Suspects()
    for run in range(MAX_DEATHS + 3):
        failed(suspects, str(run), NOW + run)
    (known,) = suspects.all(NOW)
    assert list(known.deaths) == [str(run) for run in range(3, MAX_DEATHS + 3)]
    for number in range(MAX_KNOWN + 5):
        failed(suspects, "one", digest=str(number))
    assert len(suspects.all(NOW)) == MAX_KNOWN
    assert suspects.failures("0", NOW) == 0


def test_a_repeated_suspect_is_not_reported_as_new() -> None:
    one, other = Suspects(), Suspects()
    told = [failed(one, "one")]
    assert other.merge(told) == told
    assert other.merge(told) == []
    assert Suspects(other.all(NOW)).all(NOW) == told


SAYINGS = st.lists(
    st.builds(
        Suspect,
        st.sampled_from("ab"),
        st.dictionaries(st.sampled_from(["one", "two", "three"]), st.just(NOW), max_size=2),
        st.sampled_from([0.0, NOW + 1]),
    ),
    max_size=4,
)


@given(SAYINGS)
def test_the_order_of_what_is_heard_changes_nothing(sayings: list[Suspect]) -> None:
    ends = []
    for order in itertools.permutations(sayings):
        suspects = Suspects()
        for saying in order:
            suspects.merge([saying, saying])
        ends.append({digest: suspects.failures(digest, NOW + 2) for digest in "ab"})
    assert all(end == ends[0] for end in ends)
