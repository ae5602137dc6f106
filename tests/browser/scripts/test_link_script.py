"""The playground's link script alone in Chromium, against a socket that the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.scripts.sockets import Sockets
from tests.browser.scripts.static import serve

HOME = "http://link.test/"
LINK = """async (home) => {
  const { Link } = await import(`${home}js/playground/link.js`);
  window.events = [];
  const listen = ({ type, id, code }) => events.push([type, id, code]);
  const changed = (state) => events.push(state);
  const link = new Link("acme", changed);
  link.start("a", { model: "base" }, listen);
  link.stop("a");
}"""
PING = {"type": "ping"}
TICKET = {"type": "ticket", "ticket": "t"}
START = {"type": "start", "id": "a", "model": "base"}


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    page.clock.install()
    page.route(f"{HOME}**", lambda route: serve(route, HOME, "<!doctype html>"))
    page.route(f"{HOME}tickets", lambda route: route.fulfill(json={"ticket": "t"}))
    page.route(f"{HOME}account/**", lambda route: route.fulfill(body="sign in"))
    yield page
    page.close()


@pytest.fixture
def sockets(page: Page) -> Sockets:
    """The sockets of a page that has started an answer before its first socket was open."""
    sockets = Sockets(page, "/ws/playground/acme")
    page.goto(HOME)
    page.evaluate(LINK, HOME)
    return sockets


def events(page: Page) -> Any:
    """What the link has passed to the page: states, and messages of answers."""
    return page.evaluate("events")


def test_what_was_asked_too_early_is_sent_once_it_is_open(page: Page, sockets: Sockets) -> None:
    assert sockets.until(1, 4) == [TICKET, PING, START, {"type": "stop", "id": "a"}]
    sockets.say(type="pong")
    page.wait_for_function("events.length")
    assert events(page) == ["Live"]


def test_an_answer_goes_on_where_it_was(page: Page, sockets: Sockets) -> None:
    sockets.until(1, 4)
    sockets.say(type="delta", id="a", seq=7, token_seq=2, text="One two")
    page.wait_for_function("events.length")
    sockets.all[0].close(code=1012)
    page.wait_for_function("events.at(-1) === 'Reconnecting'")
    page.clock.run_for(1_000)
    assert sockets.until(2, 3) == [
        TICKET,
        PING,
        {"type": "resume", "id": "a", "after": 7, "tokens": 2, "calls": 0},
    ]


def test_a_silent_socket_is_given_up_once(page: Page, sockets: Sockets) -> None:
    sockets.until(1, 4)
    page.clock.run_for(46_000)
    sockets.until(2, 3)
    sockets.say(type="pong")
    page.wait_for_function("events.at(-1) === 'Live'")
    assert (events(page), len(sockets.all)) == (["Reconnecting", "Live"], 2)


def test_who_may_no_longer_is_told_in_each_answer(page: Page, sockets: Sockets) -> None:
    sockets.until(1, 4)
    sockets.all[0].close(code=4403)
    page.wait_for_function("events.length === 2")
    assert events(page) == ["Closed", ["error", "a", "closed"]]
    page.clock.run_for(60_000)
    assert len(sockets.all) == 1


def test_who_is_signed_out_is_sent_to_sign_in(page: Page, sockets: Sockets) -> None:
    sockets.until(1, 4)
    sockets.all[0].close(code=4401)
    page.wait_for_url(f"{HOME}account/login/?next=%2F")


def test_it_renews_what_it_is_open_by(page: Page, sockets: Sockets) -> None:
    sockets.until(1, 4)
    for _ in range(8):  # pings every 15 s, answered
        page.clock.run_for(15_000)
        sockets.say(type="pong")
        page.wait_for_timeout(20)
    page.wait_for_function("events.length >= 8")
    assert sockets.received[0].count(TICKET) == 2 and len(sockets.all) == 1


@pytest.mark.parametrize(
    ("status", "expected"), [(403, ["Closed", ["error", "a", "closed"]]), (503, ["Reconnecting"])]
)
def test_without_a_ticket_nothing_is_opened(page: Page, status: int, expected: Any) -> None:
    page.route(f"{HOME}tickets", lambda route: route.fulfill(status=status, json={}))
    sockets = Sockets(page, "/ws/playground/acme")
    page.goto(HOME)
    page.evaluate(LINK, HOME)
    page.wait_for_function(f"events.length >= {len(expected)}")
    assert events(page)[: len(expected)] == expected and sockets.all == []


def test_who_gets_no_ticket_for_being_signed_out_signs_in(page: Page) -> None:
    page.route(f"{HOME}tickets", lambda route: route.fulfill(status=401, json={}))
    page.goto(HOME)
    page.evaluate(LINK, HOME)
    page.wait_for_url(f"{HOME}account/login/?next=%2F")
