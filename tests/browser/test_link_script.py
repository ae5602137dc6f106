"""The playground's link alone in Chromium, against a socket that the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.sockets import Sockets
from tests.browser.static import serve

HOME = "http://link.test/"
LINK = """async (home) => {
  const { Link } = await import(`${home}js/playground/link.js`);
  window.said = [];
  const listen = ({ type, id, code }) => said.push([type, id, code]);
  const [changed, leaving] = [(state) => said.push(state), () => said.push("left")];
  const link = new Link("/ws/playground/acme", changed, leaving);
  link.start("a", { model: "base" }, listen);
  link.stop("a");
}"""
PING = {"type": "ping"}
START = {"type": "start", "id": "a", "model": "base"}


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    page.clock.install()
    page.route(f"{HOME}**", lambda route: serve(route, HOME, "<!doctype html>"))
    page.route(f"{HOME}account/**", lambda route: route.fulfill(body="sign in"))
    yield page
    page.close()


@pytest.fixture
def sockets(page: Page) -> Sockets:
    """The page has asked for an answer before its first socket was open."""
    sockets = Sockets(page, "/ws/playground/acme")
    page.goto(HOME)
    page.evaluate(LINK, HOME)
    return sockets


def said(page: Page) -> Any:
    """To the page by its link: states, and answers' messages."""
    return page.evaluate("said")


def test_what_was_asked_too_early_is_sent_once_it_is_open(page: Page, sockets: Sockets) -> None:
    assert sockets.until(1, 3) == [PING, START, {"type": "stop", "id": "a"}]
    sockets.say(type="pong")
    page.wait_for_function("said.length")
    assert said(page) == ["Live"]


def test_an_answer_goes_on_where_it_was(page: Page, sockets: Sockets) -> None:
    sockets.until(1, 3)
    sockets.say(type="delta", id="a", seq=7, token_seq=2, text="One two")
    page.wait_for_function("said.length")
    sockets.all[0].close(code=1012)
    page.wait_for_function("said.at(-1) === 'Reconnecting'")
    page.clock.run_for(1_000)
    assert sockets.until(2, 2) == [PING, {"type": "resume", "id": "a", "after": 7, "tokens": 2}]


def test_a_silent_socket_is_given_up_once(page: Page, sockets: Sockets) -> None:
    sockets.until(1, 3)
    page.clock.run_for(46_000)
    sockets.until(2, 2)
    sockets.say(type="pong")
    page.wait_for_function("said.at(-1) === 'Live'")
    assert (said(page), len(sockets.all)) == (["Reconnecting", "Live"], 2)


def test_who_may_no_longer_is_told_in_each_answer(page: Page, sockets: Sockets) -> None:
    sockets.until(1, 3)
    sockets.all[0].close(code=4403)
    page.wait_for_function("said.length === 2")
    assert said(page) == ["Closed", ["error", "a", "closed"]]
    page.clock.run_for(60_000)
    assert len(sockets.all) == 1


def test_who_is_signed_out_leaves_with_what_is_there(page: Page, sockets: Sockets) -> None:
    sockets.until(1, 3)
    page.evaluate("addEventListener('pagehide', () => sessionStorage.setItem('said', said))")
    sockets.all[0].close(code=4401)
    page.wait_for_url(f"{HOME}account/login/?next=%2F")
    assert page.evaluate("sessionStorage.getItem('said')") == "left"
