"""The rules of the edge, tested with clock values and without an event loop."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.edge.bounds import MAX_TICK_S, EdgeBounds
from gateway.edge.census import Census
from gateway.edge.proxies import Proxies, plain
from gateway.edge.timeouts import Expected, ReadTimeout, WriteTimeout
from gateway.edge.websocket import FrameBudget
from inference.addresses import network_of
from inference.errors import Overloaded, RateLimitExceeded
from inference.pacing import FREE, MAX_WAIT_S
from inference.process.environ import BadSetting

pytestmark = pytest.mark.pure
BOUNDS = EdgeBounds()


@pytest.mark.parametrize(
    ("expected", "longest_s"),
    [
        (Expected.HEAD, BOUNDS.header_s),
        (Expected.BODY, BOUNDS.body_s),
        (Expected.SURPLUS, BOUNDS.surplus_s),
        (Expected.IDLE, BOUNDS.keep_alive_s),
    ],
)
def test_what_is_expected_times_out_after_its_bound(expected: Expected, longest_s: float) -> None:
    read_timeout = ReadTimeout(BOUNDS, 0.0)
    read_timeout.expect(expected, 100.0)
    assert not read_timeout.expired(100.0 + longest_s)
    assert read_timeout.expired(100.1 + longest_s)
    read_timeout.expect(expected, 1000.0)
    assert not read_timeout.expired(1000.0 + longest_s)


def test_a_client_that_waits_for_its_answer_never_times_out() -> None:
    read_timeout = ReadTimeout(BOUNDS, 0.0)
    assert read_timeout.expired(BOUNDS.header_s + 1)
    read_timeout.expect(Expected.NOTHING, 1.0)
    assert not read_timeout.expired(1e12)


def test_bytes_that_were_not_read_excuse_a_client_once() -> None:
    read_timeout = ReadTimeout(BOUNDS, 0.0)
    assert not read_timeout.excused(0)
    read_timeout.expect(Expected.HEAD, 1.0)
    assert read_timeout.excused(5)
    assert not read_timeout.excused(5)
    read_timeout.expect(Expected.BODY, 2.0)
    assert read_timeout.excused(5)


def test_the_tick_is_a_quarter_of_the_shortest_timeout() -> None:
    assert BOUNDS.tick_s == MAX_TICK_S
    assert EdgeBounds(write_s=2).tick_s == 0.5


def test_the_write_timeout_restarts_whenever_unread_bytes_become_fewer() -> None:
    write_timeout = WriteTimeout(10.0)
    assert not write_timeout.expired(1000, 100.0)
    assert not write_timeout.expired(1000, 110.0)
    assert not write_timeout.expired(999, 111.0)
    assert not write_timeout.expired(999, 121.0)
    assert write_timeout.expired(2000, 121.1)
    assert not write_timeout.expired(0, 200.0)
    assert not write_timeout.expired(5, 300.0)
    assert write_timeout.expired(5, 310.1)


def test_frames_are_paced() -> None:
    budget = FrameBudget(0.0)
    assert budget.spend(FrameBudget.BURST, 0, 0.0)
    assert not budget.spend(1, 0, 0.0)
    budget = FrameBudget(0.0)
    for second in range(1000):
        assert budget.spend(FrameBudget.PER_S, 0, float(second + 1))
    for _ in range(100_000):
        assert budget.spend(1, FrameBudget.FREE_BYTES, 1000.0)


# --- The census ----------------------------------------------------------------------------------


def test_the_one_that_has_waited_longest_goes() -> None:
    evicted: list[int] = []
    census = Census(3, 3)
    first, second, third = [
        census.enter(f"10.0.0.{n}", partial(evicted.append, n)) for n in range(3)
    ]
    first.works()
    second.waits()
    census.enter("10.0.0.9", lambda: evicted.append(9))
    assert evicted == [2] and len(census) == 3
    third.leave()
    third.waits()  # it has ended and is not counted
    first.waits()
    for n in range(3):
        census.enter("10.0.1.1", partial(evicted.append, 10 + n))
    assert evicted == [2, 1, 9, 0] and len(census) == 3


def test_a_new_connection_is_refused_if_none_can_be_evicted() -> None:
    census = Census(2, 2)
    slots = [census.enter(None, lambda: None) for _ in range(2)]
    for slot in slots:
        slot.works()
    with pytest.raises(Overloaded):
        census.enter("10.0.0.1", lambda: None)
    slots[0].leave()
    census.enter("10.0.0.1", lambda: None)


def test_each_address_has_its_share() -> None:
    census = Census(100, 2)
    first = census.enter("2001:db8::1", lambda: None)
    with census.request("2001:db8::2"):
        with pytest.raises(RateLimitExceeded):
            census.enter("2001:db8::3", lambda: None)
        with pytest.raises(RateLimitExceeded), census.request("2001:db8::4"):
            pass
        census.enter("2001:db8:0:1::", lambda: None)
    census.enter("2001:db8::3", lambda: None)
    first.leave()
    first.leave()
    census.enter("2001:db8::3", lambda: None)
    with pytest.raises(RateLimitExceeded):
        census.enter("2001:db8::3", lambda: None)


def test_refusals_of_an_address_are_spaced_and_those_of_a_proxy_are_not() -> None:
    census = Census(100, 100)
    slots = [census.enter(f"2001:db8::{n}", lambda: None) for n in range(3)]
    held = [slots[n % 3].hold_s(0.0) for n in range(int(FREE) + 30)]
    assert not any(held[: int(FREE)]) and held[-1] == MAX_WAIT_S
    assert census.enter("10.0.0.1", lambda: None).hold_s(0.0) == 0
    proxy = census.enter(None, lambda: None)
    assert not any(proxy.hold_s(0.0) for _ in range(50))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_closed_connections_leave_nothing_in_the_census(steps: list[tuple[int, int]]) -> None:
    census = Census(4, 3)
    slots = []
    for act, number in steps:
        match act:
            case 0:
                try:
                    slots.append(census.enter(f"10.0.0.{number}", lambda: None))
                except (Overloaded, RateLimitExceeded):
                    continue
            case 1 | 2 | 3 if slots:
                slot = slots[number % len(slots)]
                (slot.waits, slot.works, slot.leave)[act - 1]()
        assert len(census) <= 4 and len(census.waiting) <= len(census)
    for slot in slots:
        slot.leave()
        slot.waits()
    assert not len(census) and not census.waiting and not census._of


# --- Proxies -------------------------------------------------------------------------------------

TRUSTED = Proxies(["10.0.0.0/8", "2001:db8:f::/48", "192.0.2.1"])


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        (["203.0.113.7"], "203.0.113.7"),
        (["6.6.6.6, 203.0.113.7"], "203.0.113.7"),
        (["6.6.6.6", "203.0.113.7"], "203.0.113.7"),
        (["203.0.113.7, 10.1.2.3"], "203.0.113.7"),
        (["203.0.113.7, 10.1.2.3, 192.0.2.1"], "203.0.113.7"),
        (["10.9.9.9, 10.1.2.3"], "10.9.9.9"),
        (["6.6.6.6, 203.0.113.7:4711"], "203.0.113.7"),
        (["[2001:db8::7]:4711"], "2001:db8::7"),
        (["2001:DB8:0::7"], "2001:db8::7"),
        (["::ffff:203.0.113.7"], "203.0.113.7"),
        ([], "10.0.0.1"),
        ([""], "10.0.0.1"),
        (["unknown"], "10.0.0.1"),
        (["6.6.6.6, unknown"], "10.0.0.1"),
        (["6.6.6.6, unknown, 10.1.2.3"], "10.1.2.3"),
        (["6.6.6.6, fe80::1%" + "x" * 1000], "10.0.0.1"),
        ([", ".join(["6.6.6.6", *["10.0.0.9"] * 1000])], "10.0.0.9"),
    ],
)
def test_the_client_is_the_nearest_hop_that_is_not_ours(forwarded: list[str], client: str) -> None:
    headers = [(b"x-forwarded-for", one.encode()) for one in forwarded]
    assert TRUSTED.client("10.0.0.1", headers) == client


def test_trusted_proxies() -> None:
    assert TRUSTED.trust("10.255.0.1") and TRUSTED.trust("::ffff:10.0.0.1")
    assert TRUSTED.trust("2001:db8:f:1::9") and TRUSTED.trust("192.0.2.1")
    assert not TRUSTED.trust("192.0.2.2") and not TRUSTED.trust("")
    assert not Proxies([]).trust("127.0.0.1")


@pytest.mark.parametrize(
    ("said", "https"),
    [([], None), (["https"], True), (["http"], False), (["wss"], True), (["http, HTTPS "], True),
     (["https", "http"], False), (["gopher"], False)],
)  # fmt: skip
def test_the_scheme_is_what_the_nearest_proxy_says(said: list[str], https: bool | None) -> None:
    assert TRUSTED.is_https([(b"x-forwarded-proto", one.encode()) for one in said]) is https


@pytest.mark.parametrize("wrong", ["proxy", "10.0.0.1/8", "10.0.0.0/33", "*"])
def test_an_invalid_trusted_proxy_stops_the_start(wrong: str) -> None:
    with pytest.raises(BadSetting, match="LORIKEET_TRUSTED_PROXIES"):
        Proxies([wrong])


def test_addresses_are_counted_by_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") == "2001:db8::/64"
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") == plain("::ffff:10.0.0.1")
    assert network_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert network_of("testclient") == plain("testclient") == "testclient"
    assert network_of("") == ""


@given(st.text(), st.lists(st.text(max_size=40)))
def test_no_header_makes_it_fail(peer: str, forwarded: list[str]) -> None:
    headers = [(b"x-forwarded-for", one.encode("utf-8", "replace")) for one in forwarded]
    assert TRUSTED.client(peer or "10.0.0.1", headers)
