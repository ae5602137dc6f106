"""live.js alone in Chromium, against a socket that the test plays; no Lorikeet runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.sockets import Sockets
from tests.browser.static import serve

HOME = "http://live.test/"
PAGE = """<!doctype html><html><body><p role=status data-live hidden></p>
<live-part id=a topic=engines tenant=acme>{a}</live-part>
<live-part id=b topic=adapters tenant=acme query=7 seen=m1>{b}</live-part>
<script src=/vendor/idiomorph.js defer></script>
<script type=module src=/js/live.js></script></body></html>"""
WATCHED = 2
"""Messages by which the page watches both topics; a ping follows."""
FIELD = "<form><input id=name value=given><p>before</p></form><dialog id=d open>asked</dialog>"


class Server(Sockets):
    """What the page finds at /ws/live, and the page as it is now."""

    def __init__(self, page: Page) -> None:
        super().__init__(page, "/ws/live")
        self.part = "checking"
        page.route(f"{HOME}**", lambda route: serve(route, HOME, self.html))
        page.route(f"{HOME}account/**", lambda route: route.fulfill(body="sign in"))

    @property
    def html(self) -> str:
        return PAGE.format(a=FIELD, b=self.part)

    def open(self) -> None:
        """Load the page and wait until it watches both topics."""
        self.page.goto(HOME)
        self.until(1, WATCHED)

    def watches(self) -> list[dict[str, Any]]:
        """On the last socket."""
        return [message for message in self.heard[-1] if message["type"] == "watch"]

    def news(self, id: str, seq: str, **data: Any) -> None:
        self.say(type="news", id=id, seq=seq, data=data)


@pytest.fixture
def server(chromium: Browser) -> Iterator[Server]:
    page = chromium.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.clock.install()
    yield Server(page)
    page.close()
    assert errors == []


def state(page: Page) -> Any:
    return expect(page.get_by_role("status"))


def test_all_parts_share_one_socket_and_say_what_they_watch(server: Server) -> None:
    server.open()
    watched = [(one["id"], one["topic"], one["tenant"], one["query"]) for one in server.watches()]
    assert watched == [("1", "engines", "acme", ""), ("2", "adapters", "acme", "7")]
    server.say(type="pong")
    state(server.page).to_have_text("Live")
    assert len(server.all) == 1


def test_news_leave_what_somebody_uses_as_it_is(server: Server) -> None:
    server.open()
    page = server.page
    page.locator("#name").fill("typed")
    html = FIELD.replace("before", "after").replace(" open>asked", ">closed")
    server.news("1", "x-1", html=html)
    expect(page.locator("#a p")).to_have_text("after")
    assert page.locator("#name").input_value() == "typed"
    assert page.evaluate("document.activeElement.id") == "name"
    expect(page.locator("#d")).to_be_visible()
    expect(page.locator("#d")).to_have_text("asked")


def test_a_mark_that_is_new_has_the_part_fetched(server: Server) -> None:
    server.open()
    server.part = "ready"
    server.news("2", "x-1", mark="m1")  # the page has it
    server.news("1", "x-2", html="seen")
    expect(server.page.locator("#a")).to_have_text("seen")
    expect(server.page.locator("#b")).to_have_text("checking")
    server.news("2", "x-3", mark="m2")
    expect(server.page.locator("#b")).to_have_text("ready")


@pytest.mark.parametrize(
    "fails",
    [lambda route: route.abort(), lambda route: route.fulfill(status=502, body="no gateway")],
    ids=["network", "proxy"],
)
def test_what_cannot_be_fetched_is_fetched_once_the_server_is_heard(
    server: Server, fails: Callable[[Route], None]
) -> None:
    server.open()
    page = server.page
    page.route(HOME, fails)
    server.news("2", "x-1", mark="m2")
    page.wait_for_function("document.getElementById('b').stale")
    page.unroute(HOME, fails)
    server.part = "ready"
    server.say(type="pong")
    expect(page.locator("#b")).to_have_text("ready")


def test_rows_are_an_event_of_the_part(server: Server) -> None:
    server.open()
    server.page.evaluate(
        "document.addEventListener('live', (e) => (window.got = [e.target.id, e.detail.rows]))"
    )
    server.news("1", "x-1", rows=[1, 2], missed=False)
    server.page.wait_for_function("window.got")
    assert server.page.evaluate("window.got") == ["a", [1, 2]]


def test_a_dropped_socket_is_made_again_and_goes_on(server: Server) -> None:
    server.open()
    server.news("1", "x-5", html="first")
    expect(server.page.locator("#a")).to_have_text("first")
    for sockets in (2, 3):
        server.all[-1].close(code=1012)
        state(server.page).to_have_text("Reconnecting")
        server.page.clock.run_for(1_000)
        server.until(sockets, WATCHED)
    assert [one["after"] for one in server.watches()] == ["x-5", ""]
    server.say(type="pong")
    state(server.page).to_have_text("Live")


def test_a_silent_socket_is_given_up(server: Server) -> None:
    server.open()
    server.say(type="pong")
    state(server.page).to_have_text("Live")
    server.page.clock.run_for(15_000)
    assert [one["type"] for one in server.until(1, WATCHED + 2)].count("ping") == 2
    server.page.clock.run_for(31_000)
    server.until(2, WATCHED)


def test_who_is_not_signed_in_goes_to_sign_in_and_who_may_not_stays(server: Server) -> None:
    server.open()
    server.all[0].close(code=4403)
    state(server.page).to_have_text("Not live")
    server.page.clock.run_for(120_000)
    assert len(server.all) == 1
    server.heard.clear()
    server.all.clear()
    server.open()
    server.all[0].close(code=4401)
    server.page.wait_for_url(f"{HOME}account/login/?next=%2F")


def test_a_tab_that_is_hidden_for_long_needs_no_socket(server: Server) -> None:
    server.open()
    page = server.page

    def look(*, hidden: bool) -> None:
        page.evaluate(
            "(hidden) => { Object.defineProperty(document, 'hidden', "
            "{ value: hidden, configurable: true });"
            " document.dispatchEvent(new Event('visibilitychange')); }",
            hidden,
        )

    look(hidden=True)
    page.clock.run_for(30_000)
    look(hidden=False)
    page.clock.run_for(40_000)
    assert len(server.all) <= 2  # at most one was given up for its silence
    look(hidden=True)
    server.say(type="pong")
    page.clock.run_for(61_000)
    state(page).to_have_text("Paused")
    before = len(server.all)
    look(hidden=False)
    server.until(before + 1, WATCHED)
    server.say(type="pong")
    state(page).to_have_text("Live")
