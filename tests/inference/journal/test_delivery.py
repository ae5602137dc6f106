"""Delivery of ended requests to the ledger: no entry is lost, forgotten or stuck."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.agent.journal.delivery import EntryDelivery
from inference.link.accounts import NOBODY, LedgerEntry, Usage
from inference.link.session import AttemptKey

pytestmark = pytest.mark.pure

RESEND_AFTER_S, REPEAT_AFTER_S = 30.0, 300.0
A, B, C = "http://a", "http://b", "http://c"


def entry(id: str, attempt: int = 1) -> LedgerEntry:
    return LedgerEntry(id, NOBODY, "base", Usage(3, 0, 5), "stop", attempt)


def firsts(ids: Iterable[str]) -> list[AttemptKey]:
    return [(id, 1) for id in ids]


def delivery(backlog: str = "", *, window: int = 4, batch: int = 3, up: str = "") -> EntryDelivery:
    """A delivery with one entry for each letter of `backlog` and one link for each letter of
    `up`."""
    times = {"resend_after_s": RESEND_AFTER_S, "repeat_after_s": REPEAT_AFTER_S}
    made = EntryDelivery(map(entry, backlog), window=window, batch=batch, **times)
    for name in up:
        made.link_up(f"http://{name}")
    return made


def taken(of: EntryDelivery, link: str, now: float = 0.0) -> str:
    return "".join(sent.id for sent in of.take(link, now))


def test_the_backlog_goes_to_whoever_asks_oldest_first_and_in_batches() -> None:
    d = delivery("12345", up="ab")
    assert taken(d, A) == "123"
    assert taken(d, B) == "45"
    assert taken(d, A) == taken(d, B) == ""
    assert len(d) == 5


def test_an_entry_goes_to_the_link_that_it_is_meant_for_before_the_backlog() -> None:
    d = delivery("1", up="ab")
    d.add(entry("2"), B, 0.0)
    assert taken(d, A) == "1"
    assert taken(d, B) == "2"


@pytest.mark.parametrize("meant_for", [None, C])
def test_an_entry_without_an_open_link_goes_to_any_link(meant_for: str | None) -> None:
    d = delivery(up="a")
    d.add(entry("1"), meant_for, 0.0)
    assert taken(d, A) == "1"


def test_nothing_goes_over_a_link_that_is_not_there() -> None:
    d = delivery("1")
    assert taken(d, A) == ""
    d.link_up(A)
    d.link_up(A)
    assert taken(d, A) == "1"


def test_what_is_acknowledged_is_forgotten_and_makes_room() -> None:
    d = delivery("12345", up="a")
    assert taken(d, A) == "123"
    assert taken(d, A) == "4", "a window of 4"
    assert taken(d, A) == ""
    d.acknowledged(firsts(["1", "3", "unknown"]), A)
    assert len(d) == 3
    assert taken(d, A) == "5"


def test_a_silent_gateway_has_no_more_than_its_window_and_the_rest_goes_elsewhere() -> None:
    d = delivery(up="ab")
    for id in "123456":
        d.add(entry(id), A, 0.0)
    assert taken(d, A) + taken(d, A) == "1234"
    assert taken(d, B) == "56"


def test_entries_of_a_lost_link_go_first_in_their_order() -> None:
    d = delivery("123", up="a")
    assert taken(d, A) == "123"
    d.add(entry("4"), A, 0.0)
    d.add(entry("5"), None, 0.0)
    d.acknowledged(firsts(["2"]), A)
    d.link_down(A)
    d.link_down(A)
    d.link_up(B)
    assert taken(d, B) + taken(d, B) == "1345"


def test_a_link_that_came_back_gets_again_what_it_did_not_acknowledge() -> None:
    d = delivery("12", up="a")
    assert taken(d, A) == "12"
    d.link_down(A)
    d.link_up(A)
    assert taken(d, A) == "12"


def test_what_a_gateway_keeps_too_long_is_sent_to_another_as_well() -> None:
    d = delivery("12", up="a")
    assert taken(d, A) == "12"
    d.link_up(B)
    assert taken(d, B, RESEND_AFTER_S - 1) == ""
    assert taken(d, B, RESEND_AFTER_S) == "12"
    d.link_up(C)
    assert taken(d, C, RESEND_AFTER_S + 1) == "", "B has its time as well"
    assert taken(d, C, 2 * RESEND_AFTER_S) == "12"
    assert taken(d, A, 3 * RESEND_AFTER_S) == "", "A has them still"
    d.acknowledged(firsts(["1", "2"]), C)
    assert len(d) == 0


def test_overdue_entries_go_before_newer_ones_even_if_their_link_never_took_them() -> None:
    d = delivery(up="ab")
    d.add(entry("1"), A, 0.0)
    d.add(entry("2"), None, RESEND_AFTER_S)
    assert taken(d, B, RESEND_AFTER_S) == "12"


def test_resent_entries_do_not_delay_other_overdue_ones() -> None:
    d = delivery("12", batch=1, up="a")
    assert taken(d, A) + taken(d, A) == "12"
    d.link_up(B)
    assert taken(d, B, RESEND_AFTER_S) == "1"
    assert taken(d, B, RESEND_AFTER_S) == "2"


def test_what_the_only_gateway_had_no_room_for_is_sent_to_it_again() -> None:
    d = delivery("123456", up="a")
    assert taken(d, A) + taken(d, A) == "1234", "its window is full"
    assert taken(d, A, REPEAT_AFTER_S - 1) == ""
    assert taken(d, A, REPEAT_AFTER_S) == "123"
    assert taken(d, A, REPEAT_AFTER_S) == "4"
    assert taken(d, A, REPEAT_AFTER_S + 1) == "", "it has its time again"
    d.acknowledged(firsts("1234"), A)
    assert taken(d, A, REPEAT_AFTER_S + 1) == "56"


def test_an_entry_that_another_acknowledged_is_not_sent_any_more() -> None:
    d = delivery(up="ab")
    d.add(entry("1"), A, 0.0)
    assert taken(d, B, RESEND_AFTER_S) == "1"
    d.acknowledged(firsts(["1"]), B)
    assert taken(d, A, RESEND_AFTER_S) == ""


def test_a_late_acknowledgement_of_a_lost_link_counts() -> None:
    d = delivery("12", up="a")
    assert taken(d, A) == "12"
    d.link_down(A)
    d.acknowledged(firsts(["1"]), A)
    d.link_up(B)
    assert taken(d, B) == "2"


def test_a_silent_gateways_window_does_not_grow() -> None:
    d = delivery("1234", up="a")
    assert taken(d, A) + taken(d, A) == "1234"
    d.link_up(B)
    assert taken(d, B, RESEND_AFTER_S) == "123"
    d.acknowledged(firsts(["1", "2", "3"]), B)
    d.add(entry("5"), A, RESEND_AFTER_S)
    assert taken(d, A, RESEND_AFTER_S) == ""
    assert taken(d, B, RESEND_AFTER_S) == "45"
    d.acknowledged(firsts(["1"]), A)
    d.add(entry("6"), A, RESEND_AFTER_S)
    assert taken(d, A, RESEND_AFTER_S) == "6"


def test_entries_acknowledged_elsewhere_leave_the_window() -> None:
    """That gateway dropped it for lack of room, so it will never acknowledge it."""
    d = delivery("1234", up="ab", batch=4)
    assert taken(d, A) == "1234"
    assert taken(d, B, RESEND_AFTER_S) == "1234"
    d.acknowledged(firsts("1234"), B)
    d.link_down(B)
    d.add(entry("5"), A, RESEND_AFTER_S)
    assert taken(d, A, REPEAT_AFTER_S - 1) == ""
    assert taken(d, A, REPEAT_AFTER_S) == "5"


def test_an_entry_at_two_links_stays_with_the_other_if_one_is_lost() -> None:
    d = delivery("1", up="a")
    assert taken(d, A) == "1"
    d.link_up(B)
    assert taken(d, B, RESEND_AFTER_S) == "1"
    d.link_down(A)
    d.link_up(C)
    assert taken(d, C, RESEND_AFTER_S) == ""
    d.link_down(B)
    assert taken(d, C, RESEND_AFTER_S) == "1"


def test_attempts_of_a_request_are_apart() -> None:
    d = delivery(up="a")
    for attempt in (1, 2):
        d.add(entry("1", attempt), A, 0.0)
    assert [one.attempt for one in d.take(A, 0.0)] == [1, 2]
    d.acknowledged([("1", 2)], A)
    assert len(d) == 1
    d.link_down(A)
    d.link_up(B)
    assert [one.attempt for one in d.take(B, 0.0)] == [1]


LINKS = st.sampled_from([A, B, C])


class Deliveries(RuleBasedStateMachine):
    """Links come, go and acknowledge at random. `pending` holds the entries that no ledger has."""

    def __init__(self) -> None:
        super().__init__()
        self.delivery = delivery("", window=5, batch=3)
        self.pending: set[str] = set()
        self.at: dict[str, dict[str, float]] = {}
        """By open link: the entries sent over it and not acknowledged there, with the time of
        sending."""
        self.sent_at: dict[str, float] = {}
        self.now, self.made = 0.0, 0

    @rule(link=st.none() | LINKS)
    def add(self, link: str | None) -> None:
        self.made += 1
        self.pending.add(str(self.made))
        self.delivery.add(entry(str(self.made)), link, self.now)

    @rule(link=LINKS)
    def link_up(self, link: str) -> None:
        self.delivery.link_up(link)
        self.at.setdefault(link, {})

    @rule(link=LINKS)
    def link_down(self, link: str) -> None:
        self.delivery.link_down(link)
        self.at.pop(link, None)

    @rule(link=LINKS)
    def take(self, link: str) -> None:
        sent = [one.id for one in self.delivery.take(link, self.now)]
        assert len(sent) <= 3
        assert len(set(sent)) == len(sent)
        assert self.pending.issuperset(sent), "acknowledged entries are gone"
        if link not in self.at:
            assert not sent
            return
        for id in self.at[link].keys() & sent:
            assert self.now - self.sent_at[id] >= REPEAT_AFTER_S, "once over one link, for long"
        kept = {
            id: at
            for id, at in self.at[link].items()
            if id in self.pending or at > self.now - REPEAT_AFTER_S
        }
        self.at[link] = kept | dict.fromkeys(sent, self.now)
        self.sent_at |= dict.fromkeys(sent, self.now)

    @precondition(lambda self: any(self.at.values()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from(sorted(one for one, ids in self.at.items() if ids)))
        ids = data.draw(st.sets(st.sampled_from(sorted(self.at[link])), min_size=1))
        self.delivery.acknowledged(firsts(ids), link)
        for id in ids:
            del self.at[link][id]
        self.pending -= ids

    @rule(seconds=st.floats(0, 2 * RESEND_AFTER_S) | st.just(REPEAT_AFTER_S))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_lost_and_no_window_is_exceeded(self) -> None:
        assert len(self.delivery) == len(self.pending)
        assert all(len(ids) <= 5 for ids in self.at.values())

    def teardown(self) -> None:
        """One gateway that acknowledges is enough, whatever the others withhold."""
        self.delivery.link_up("http://good")
        for _ in range(len(self.pending) + 1):
            self.now += RESEND_AFTER_S
            for link in self.at:
                self.delivery.take(link, self.now)  # these links take first and never acknowledge
            self.now += RESEND_AFTER_S
            ids = [one.id for one in self.delivery.take("http://good", self.now)]
            self.delivery.acknowledged(firsts(ids), "http://good")
            self.pending.difference_update(ids)
        assert not self.pending
        assert len(self.delivery) == 0


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(stateful_step_count=40)
