"""The answers that an agent keeps for a gateway to adopt."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inference.agent.job import Job
from inference.agent.jobs import kept_answers
from inference.agent.jobs.kept_answers import (
    ANNOUNCED_AFTER_S,
    MAX_GRACE_S,
    KeptAnswers,
    OrphanNews,
    Text,
)
from inference.link.accounts import Account, Usage
from inference.link.wire import Delta, Done, Fault, Orphan, Resume, Retention, Submit

pytestmark = pytest.mark.pure

ACCOUNT = Account(1, 2, 3.5, "base")
GRACE_S = 30.0
DONE = Done("r1", Usage(1, 0, 2), "stop")


class Url:
    """The only attribute of a link that is used here."""

    def __init__(self, url: str = "http://a") -> None:
        self.url = url


def job(id: str = "r1", tenant: str = "acme", link: Any = None, **fields: Any) -> Job:
    retention = Retention(fields.pop("grace_s", GRACE_S), fields.pop("label", ""))
    submit = Submit(
        id, "chat", b"", "m", tenant, "salt", account=ACCOUNT, retention=retention, **fields
    )
    made: Any = link or Url()
    return Job(submit, made)


def kept(keeps: KeptAnswers, one: Job | None = None, text: str = "hello") -> Job:
    one = one or job()
    keeps.begin(one, None)
    keeps.note(one, Delta(one.id, text, 2, [], 5, 1, ids={0: [7, 8]}))
    return one


def named(one: Job) -> Orphan:
    return Orphan(one.id, one.attempt, ACCOUNT, "m", one.request.retention.label)


def test_a_kept_text_is_all_deltas_merged() -> None:
    text = Text(None)
    assert not text
    text.add(Delta("x", "Hel", 2, [], 7, 3, ids={0: [11, 12]}))
    text.add(Delta("x", "lo", 1, [b"{1}"], ids={0: [13], 1: [4]}))
    assert text
    assert text.delta("r1", 1001) == Delta(
        "r1", "Hello", 3, [b"{1}"], 7, 3, 1001, {0: [11, 12, 13], 1: [4]}
    )


def test_a_delivered_delta_does_not_change_later() -> None:
    """A told delta may still wait for the link, where later deltas are merged into it."""
    text = Text(None)
    text.add(Delta("x", "", 1, [b"{1}"], ids={0: [1]}))
    told = text.delta("r1", 1001)
    text.add(Delta("x", "", 1, [b"{2}"], ids={0: [2]}))
    assert (told.chunks, told.ids) == ([b"{1}"], {0: [1]})


def test_the_kept_text_begins_with_that_of_lower_attempts() -> None:
    text = Text(Resume({0: [1, 2], 1: [3]}, usage=Usage(9, 4, 3), text="He", chunks=[b"{}"]))
    text.add(Delta("x", "y", 1, ids={1: [5]}))
    assert text.delta("r", 2) == Delta("r", "Hey", 4, [b"{}"], 9, 4, 2, {0: [1, 2], 1: [3, 5]})


@pytest.mark.parametrize("piece", [Delta("r", "a"), Delta("r", ids={0: [1]}), Delta("r", "", 1)])
def test_a_kept_text_with_any_content_is_truthy(piece: Delta) -> None:
    text = Text(None)
    text.add(piece)
    assert text


def test_an_orphan_is_announced_after_its_gateway_did_not_return() -> None:
    keeps = KeptAnswers()
    one = kept(keeps)
    assert keeps.news(0.0) == OrphanNews() and len(keeps) == 0
    assert keeps.lost(one, 10.0)
    assert one.link is None and len(keeps) == 1
    assert keeps.news(10.0 + ANNOUNCED_AFTER_S / 2) == OrphanNews()
    assert keeps.orphans() == [named(one)], "a gateway that joins hears of it at once"
    assert keeps.news(10.0 + ANNOUNCED_AFTER_S) == OrphanNews([named(one)])
    assert keeps.news(10.0 + ANNOUNCED_AFTER_S) == OrphanNews(), "they are told once"


def test_an_orphan_is_announced_at_once_if_left_or_its_gateway_is_down() -> None:
    keeps = KeptAnswers()
    left, lost, other = kept(keeps), kept(keeps, job("r2")), kept(keeps, job("r3", link=Url("b")))
    keeps.lost(left, 10.0, at_once=True)
    keeps.lost(lost, 10.0)
    keeps.lost(other, 10.0)
    assert keeps.news(10.0) == OrphanNews([named(left)])
    keeps.not_dialled("http://a", 10.1)
    assert keeps.news(10.1) == OrphanNews([named(lost)])


def test_an_answer_without_a_grace_is_not_kept() -> None:
    keeps, one = KeptAnswers(), job()
    keeps.note(one, Delta("r1", "a"))
    keeps.ended(one, DONE, 0.0)
    assert not keeps.lost(one, 0.0) and keeps.bytes == 0
    assert one.link is not None


def test_an_orphan_is_adopted_once() -> None:
    keeps = KeptAnswers()
    one = kept(keeps)
    keeps.lost(one, 0.0, at_once=True)
    keeps.news(0.0)
    assert keeps.adopt(("r1", 2)) is None
    found = keeps.adopt(("r1", 1))
    assert found is not None and found.job is one and found.done is None
    assert keeps.adopt(("r1", 1)) is None
    assert keeps.news(0.0) == OrphanNews(withdrawn=[("r1", 1)]), "the others hear that it is gone"
    assert keeps.news(2 * GRACE_S) == OrphanNews(), "it lives as long as its gateway"
    keeps.note(one, Delta("r1", "!"))
    one.attempt = 1001
    assert keeps.lost(one, 50.0, at_once=True), "and may be lost again"
    again = keeps.adopt(("r1", 1001))
    assert again is not None and again.text.delta("r1", 1).text == "hello!"
    assert keeps.news(50.0) == OrphanNews(), "nobody had heard of it"


def test_an_orphan_that_is_not_adopted_ends_after_its_grace() -> None:
    keeps = KeptAnswers()
    one = kept(keeps)
    keeps.lost(one, 0.0, at_once=True)
    assert keeps.news(GRACE_S - 1).expired == []
    assert keeps.news(GRACE_S) == OrphanNews(withdrawn=[("r1", 1)], expired=[one])
    assert keeps.bytes == 0 and len(keeps) == 0
    assert keeps.adopt(("r1", 1)) is None


def test_no_grace_is_longer_than_the_longest() -> None:
    keeps = KeptAnswers()
    one = kept(keeps, job(grace_s=1e9))
    keeps.lost(one, 0.0, at_once=True)
    assert keeps.news(MAX_GRACE_S).expired == [one]


@pytest.mark.parametrize("fault", [None, Fault("engine_failed", "died")])
def test_an_orphan_that_ended_is_kept_with_its_done(fault: Fault | None) -> None:
    keeps = KeptAnswers()
    one = kept(keeps)
    keeps.lost(one, 0.0, at_once=True)
    done = msgspec.structs.replace(DONE, fault=fault)
    keeps.ended(one, done, 20.0)
    assert keeps.news(GRACE_S - 1).expired == []
    found = keeps.adopt(("r1", 1))
    assert found is not None and found.done == done


def test_an_answer_that_ended_before_its_gateway_was_lost_is_kept() -> None:
    keeps = KeptAnswers()
    one, other, elder = kept(keeps), kept(keeps, job("r2", link=Url("b"))), kept(keeps, job("r0"))
    keeps.ended(elder, DONE, -GRACE_S)
    keeps.ended(one, DONE, 0.0)
    keeps.ended(other, DONE, 0.0)
    keeps.news(0.0)
    keeps.left_behind("http://a", 5.0)
    assert keeps.orphans() == [named(one)], "the elder's time is over"
    assert keeps.news(5.0 + GRACE_S).expired == [], "it does not run"
    assert keeps.orphans() == []


@pytest.mark.parametrize("reason", ["cancelled", "moved"])
def test_a_cancelled_answer_is_not_kept(reason: str) -> None:
    keeps = KeptAnswers()
    one = kept(keeps)
    keeps.lost(one, 0.0, at_once=True)
    keeps.news(0.0)
    keeps.ended(one, Done("r1", Usage(), reason), 1.0)
    assert keeps.orphans() == [] and keeps.news(1.0).withdrawn == [("r1", 1)]


def test_a_gateway_that_was_cut_off_alone_cancels_what_it_has_elsewhere() -> None:
    keeps = KeptAnswers()
    runs, ended = kept(keeps), kept(keeps, job("r2"))
    for one in (runs, ended):
        keeps.lost(one, 0.0, at_once=True)
    keeps.ended(ended, DONE, 1.0)
    keeps.news(1.0)
    for one in (runs, ended):
        keeps.cancel((one.id, 1))
    keeps.cancel(("r9", 1))
    assert keeps.orphans() == [named(runs)], "one that runs is ended by its agent"
    assert keeps.news(1.0).withdrawn == [("r2", 1)]


# --- bounds --------------------------------------------------------------------------------------


def test_an_answer_that_is_too_long_is_kept_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "MAX_KEPT_BYTES", 1000)
    keeps = KeptAnswers()
    long, other = kept(keeps), kept(keeps, job("r2"))
    keeps.lost(other, 0.0, at_once=True)
    for one in (long, other):
        keeps.note(one, Delta("", "x" * 251))
    assert keeps.bytes == 0
    assert not keeps.lost(long, 0.0)
    assert keeps.news(0.0).expired == [other], "and without a gateway it ends"


def test_chunks_ids_and_whole_answers_count() -> None:
    keeps = KeptAnswers()
    one = job()
    keeps.begin(one, Resume({0: [1, 2]}, text="ab", chunks=[b"x" * 36]))
    assert keeps.bytes == 2 * 4 + 2 * 4 + 100
    keeps.note(one, Delta("", "", 1, [b"x" * 36], ids={0: [3]}))
    assert keeps.bytes == 116 + 104
    keeps.ended(one, msgspec.structs.replace(DONE, response=b"x" * 80), 0.0)
    assert keeps.bytes == 300


def test_a_tenant_has_a_quarter_of_the_bytes_and_shuts_nobody_else_out() -> None:
    keeps = KeptAnswers(most_bytes=4000)
    greedy = [kept(keeps, job(f"g{i}", "greedy"), "x" * 60) for i in range(4)]
    keeps.ended(greedy[1], DONE, 0.0)
    one = kept(keeps, job("mine", "modest"), "x" * 60)
    keeps.note(greedy[0], Delta("", "x" * 10))
    assert not keeps.lost(greedy[1], 0.0), "what ended gave way"
    assert keeps.lost(greedy[2], 0.0)
    keeps.note(greedy[3], Delta("", "x" * 60))
    assert not keeps.lost(greedy[3], 0.0), "then the one that wants more"
    assert keeps.lost(greedy[0], 0.0) and keeps.lost(one, 0.0)


def test_all_tenants_together_have_no_more_than_there_is() -> None:
    keeps = KeptAnswers(most_bytes=4000)
    ended = kept(keeps, job("e", "e"), "x" * 220)
    keeps.ended(ended, DONE, 0.0)
    others = [kept(keeps, job(str(i), str(i)), "x" * 220) for i in range(4)]
    assert not keeps.lost(ended, 0.0)
    late = kept(keeps, job("late", "late"), "x" * 220)
    assert not keeps.lost(late, 0.0)
    assert all(keeps.lost(one, 0.0) for one in others)
    assert keeps.bytes <= 4000


def test_orphans_are_bounded_in_number_and_a_tenant_has_a_quarter() -> None:
    keeps = KeptAnswers(max_orphans=8)
    jobs = [kept(keeps, job(f"g{i}", "greedy")) for i in range(4)]
    assert [keeps.lost(one, 0.0) for one in jobs[:3]] == [True, True, False]
    keeps.ended(jobs[0], DONE, 1.0)
    assert keeps.lost(jobs[3], 1.0), "what ended gives way"
    assert keeps.adopt(("g0", 1)) is None
    others = [kept(keeps, job(f"o{i}", f"o{i}")) for i in range(7)]
    assert [keeps.lost(one, 0.0) for one in others] == [True] * 6 + [False]
    assert len(keeps) == 8
