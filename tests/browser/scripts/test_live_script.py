"""live.js alone in Chromium, against a socket that the test plays; no Lorikeet runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.scripts.sockets import Sockets
from tests.browser.scripts.static import serve

HOME = "http://live.test/"
PAGE = """<!doctype html><html><body><p role=status data-live hidden></p>
<live-part id=a topic=engines tenant=acme every=1 src=/live/engines?of=x>{a}</live-part>
<live-part id=b topic=adapters tenant=acme every=1 seen={seen}>{b}</live-part>
<live-part id=c topic=requests tenant=acme every=1 src=/live/requests></live-part>
<script src=/vendor/idiomorph.js defer></script>
<script type=module src=/js/live.js></script></body></html>"""
OPENED = 4
"""Number of a socket's first messages: its ticket and a watch of each topic. A ping follows."""
FIELD = "<form><input id=name value=given><p>before</p></form><dialog id=d open>asked</dialog>"


class Server(Sockets):
    """The gateway at /ws/live, and the console."""

    def __init__(self, page: Page) -> None:
        super().__init__(page, "/ws/live")
        self.part, self.mark = "checking", "m1"
        self.data: dict[str, Any] = {"html": FIELD}
        self.asked: list[str] = []
        """The addresses of the parts that were fetched; for the page, `page` and the mark that it
        sent."""
        self.session = True
        self.wishes: list[Any] = []
        page.route(f"{HOME}**", lambda route: serve(route, HOME, self.html))
        page.route(f"{HOME}account/**", lambda route: route.fulfill(body="sign in"))
        page.route(f"{HOME}tickets", self._ticket)
        page.route(f"{HOME}live/**", self.answer)
        page.route(HOME, self.whole)

    @property
    def html(self) -> str:
        return PAGE.format(a=FIELD, b=self.part, seen=self.mark)

    def _ticket(self, route: Route) -> None:
        self.wishes.append(route.request.post_data_json)
        route.fulfill(status=200 if self.session else 401, json={"ticket": "t"})

    def answer(self, route: Route) -> None:
        """Answer the request for a part."""
        self.asked.append(route.request.url.removeprefix(HOME))
        if self.session:
            return route.fulfill(json=self.data)
        route.fulfill(status=204, headers={"HX-Redirect": "/account/login/"})

    def whole(self, route: Route) -> None:
        """Answer the request for the page, loaded as a whole or fetched for a part."""
        seen = route.request.headers.get("if-none-match")
        if route.request.headers.get("hx-request"):
            self.asked.append(f"page {seen or ''}".strip())
        if seen == f'"{self.mark}"':
            return route.fulfill(status=304)
        route.fulfill(body=self.html, content_type="text/html")

    def open(self) -> None:
        """Load the page, wait until it watches all topics, and stop its clock."""
        self.page.goto(HOME)
        self.until(1, OPENED)
        self.page.clock.pause_at(self.page.evaluate("Date.now()") / 1000 + 1)

    def watches(self) -> list[dict[str, Any]]:
        """The watch messages on the last socket."""
        return [message for message in self.received[-1] if message["type"] == "watch"]

    def news(self, id: str, seq: str, **data: Any) -> None:
        self.say(type="news", id=id, seq=seq, data=data)

    def until_asked(self, number: int) -> list[str]:
        """Wait until the page has made `number` requests. Returns what it asked for."""
        for _ in range(1000):
            if len(self.asked) >= number:
                break
            self.page.wait_for_timeout(10)
        assert len(self.asked) == number, self.asked
        return self.asked

    def rest(self) -> None:
        """Let pending requests be answered, and leave time for requests that should not be made."""
        self.page.wait_for_timeout(200)


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


def look(page: Page, *, hidden: bool) -> None:
    """Hide the page, as when another tab is selected, or show it again."""
    page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden', "
        "{ value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


ENGINES = "live/engines?of=x"
REQUESTS = "live/requests"


def test_all_parts_share_one_socket_and_say_what_they_watch(server: Server) -> None:
    server.open()
    assert server.received[0][0] == {"type": "ticket", "ticket": "t"}
    watched = [(one["id"], one["topic"], one["after"]) for one in server.watches()]
    assert watched == [("1", "engines", ""), ("2", "adapters", ""), ("3", "requests", "")]
    assert server.wishes == [{"purpose": "live", "tenant": "acme"}]
    server.say(type="pong")
    state(server.page).to_have_text("Live")
    assert len(server.all) == 1


def test_what_changed_is_asked_for_and_leaves_what_somebody_uses_as_it_is(server: Server) -> None:
    server.open()
    page = server.page
    page.locator("#name").fill("typed")
    html = FIELD.replace("before", "after").replace(" open>asked", ">closed")
    server.data = {"html": html}
    server.news("1", "x-1")
    expect(page.locator("#a p")).to_have_text("after")
    assert page.locator("#name").input_value() == "typed"
    assert page.evaluate("document.activeElement.id") == "name"
    expect(page.locator("#d")).to_be_visible()
    expect(page.locator("#d")).to_have_text("asked")
    assert server.asked == [ENGINES]


def test_a_part_asks_once_in_its_time_however_often_it_is_told(server: Server) -> None:
    server.open()
    for number in range(5):
        server.news("1", f"x-{number}")
    server.until_asked(1)
    server.rest()
    assert server.asked == [ENGINES]
    server.page.clock.run_for(1_000)
    server.until_asked(2)
    for _ in range(3):
        server.page.clock.run_for(1_000)
        server.rest()
    assert server.asked == [ENGINES] * 2  # the second for all news that came meanwhile


def test_one_request_is_in_flight_and_no_news_is_lost(server: Server) -> None:
    server.open()
    waiting: list[Route] = []
    server.page.route(f"{HOME}live/**", lambda route: waiting.append(route))
    server.news("1", "x-1")
    while not waiting:
        server.page.wait_for_timeout(10)
    for number in (2, 3):
        server.news("1", f"x-{number}")
        server.page.clock.run_for(5_000)
        server.rest()
    assert len(waiting) == 1
    waiting[0].fulfill(json={"html": "old"})
    expect(server.page.locator("#a")).to_have_text("old")
    server.page.clock.run_for(1_000)
    while len(waiting) < 2:
        server.page.wait_for_timeout(10)
    waiting[1].fulfill(json={"html": "new"})
    expect(server.page.locator("#a")).to_have_text("new")


def test_a_part_with_a_mark_asks_its_page_for_another_one(server: Server) -> None:
    server.open()
    server.news("2", "x-1")
    server.until_asked(1)
    server.rest()
    expect(server.page.locator("#b")).to_have_text("checking")
    server.part, server.mark = "ready", "m2"
    server.news("2", "x-2")
    server.page.clock.run_for(1_000)
    expect(server.page.locator("#b")).to_have_text("ready")
    server.news("2", "x-3")
    server.page.clock.run_for(1_000)
    assert server.until_asked(3) == ['page "m1"', 'page "m1"', 'page "m2"']


@pytest.mark.parametrize(
    "fails",
    [lambda route: route.abort(), lambda route: route.fulfill(status=502, body="no console")],
    ids=["network", "proxy"],
)
def test_what_cannot_be_had_is_asked_for_once_the_server_is_heard(
    server: Server, fails: Callable[[Route], None]
) -> None:
    server.open()
    page, failed = server.page, []

    def fail(route: Route) -> None:
        failed.append(route.request.url)
        fails(route)

    for address in (HOME, f"{HOME}live/**"):
        page.route(address, fail)
    server.mark, server.part = "m2", "ready"
    server.data = {"html": "seen", "rows": []}
    server.news("1", "x-1")
    server.news("2", "x-2")
    server.news("3", "x-3", ended=["5-a"], more=0, missed=False)
    while len(failed) < 3:
        page.wait_for_timeout(10)
    server.rest()
    for address in (HOME, f"{HOME}live/**"):
        page.unroute(address, fail)
    assert server.asked == []
    server.say(type="pong")
    page.clock.run_for(1_000)
    expect(page.locator("#a")).to_have_text("seen")
    expect(page.locator("#b")).to_have_text("ready")
    assert sorted(server.until_asked(3)) == [ENGINES, f"{REQUESTS}?ended=5-a", 'page "m1"']


def test_requests_that_ended_are_asked_for_together_and_are_an_event(server: Server) -> None:
    server.open()
    server.page.evaluate(
        "window.got = []; document.addEventListener('live', "
        "(e) => window.got.push([e.target.id, e.detail.rows]))"
    )
    server.data = {"rows": [{"id": "a", "html": "<tr>"}]}
    server.news("3", "x-1", ended=["5-a"], more=0, missed=False)
    server.until_asked(1)
    server.page.wait_for_function("window.got.length")
    for number in (6, 7):
        server.news("3", f"x-{number}", ended=[f"{number}-b"], more=0, missed=False)
    server.page.clock.run_for(1_000)
    server.page.wait_for_function("window.got.length > 1")
    assert server.asked == [f"{REQUESTS}?ended=5-a", f"{REQUESTS}?ended=6-b&ended=7-b"]
    assert server.page.evaluate("window.got") == [["c", [{"id": "a", "html": "<tr>"}]]] * 2


def test_of_too_many_requests_the_newest_are_asked_for_and_the_rest_is_said(
    server: Server,
) -> None:
    server.open()
    server.page.evaluate(
        "window.more = 0; document.addEventListener('live', "
        "(e) => e.detail.rows.forEach((row) => (window.more += row.more ?? 0)))"
    )
    server.data = {"rows": []}
    look(server.page, hidden=True)
    for first in (0, 40):
        ended = [f"{number}-a" for number in range(first, first + 40)]
        server.news("3", f"x-{first}", ended=ended, more=2, missed=False)
    server.rest()
    assert server.asked == []
    look(server.page, hidden=False)
    (asked,) = server.until_asked(1)
    assert asked == REQUESTS + "?" + "&".join(f"ended={number}-a" for number in range(30, 80))
    assert server.page.evaluate("window.more") == 34


def test_who_missed_some_asks_for_the_page(server: Server) -> None:
    server.open()
    server.part = "new"
    server.news("3", "x-1", ended=[], more=0, missed=True)
    assert server.until_asked(1) == ["page"]


def test_a_hidden_tab_asks_for_nothing_until_somebody_looks(server: Server) -> None:
    server.open()
    look(server.page, hidden=True)
    server.news("1", "x-1")
    server.page.clock.run_for(5_000)
    server.rest()
    assert server.asked == []
    look(server.page, hidden=False)
    assert server.until_asked(1) == [ENGINES]


def test_a_dropped_socket_is_made_again_and_goes_on(server: Server) -> None:
    server.open()
    server.news("1", "x-5")
    server.until_asked(1)
    for sockets in (2, 3):
        server.all[-1].close(code=1012)
        state(server.page).to_have_text("Reconnecting")
        server.page.clock.run_for(1_000)
        server.until(sockets, OPENED)
    assert [one["after"] for one in server.watches()] == ["x-5", "", ""]
    server.say(type="pong")
    state(server.page).to_have_text("Live")


def test_a_silent_socket_is_given_up(server: Server) -> None:
    server.open()
    server.say(type="pong")
    state(server.page).to_have_text("Live")
    server.page.clock.run_for(15_000)
    assert [one["type"] for one in server.until(1, OPENED + 2)].count("ping") == 2
    server.page.clock.run_for(31_000)
    server.until(2, OPENED)


def test_a_session_that_ended_leads_to_sign_in_from_a_part_as_well(server: Server) -> None:
    server.open()
    server.session = False
    server.news("1", "x-1")
    server.page.wait_for_url(f"{HOME}account/login/?next=%2F")


def test_who_is_not_signed_in_goes_to_sign_in_and_who_may_not_stays(server: Server) -> None:
    server.open()
    server.all[0].close(code=4403)
    state(server.page).to_have_text("Not live")
    server.page.clock.run_for(120_000)
    assert len(server.all) == 1
    server.received.clear()
    server.all.clear()
    server.open()
    server.all[0].close(code=4401)
    server.page.wait_for_url(f"{HOME}account/login/?next=%2F")


def test_a_tab_that_is_hidden_for_long_needs_no_socket(server: Server) -> None:
    server.open()
    page = server.page

    look(page, hidden=True)
    page.clock.run_for(30_000)
    look(page, hidden=False)
    page.clock.run_for(40_000)
    assert len(server.all) <= 2  # at most one was replaced because of its silence
    look(page, hidden=True)
    server.say(type="pong")
    page.clock.run_for(61_000)
    state(page).to_have_text("Paused")
    before = len(server.all)
    look(page, hidden=False)
    server.until(before + 1, OPENED)
    server.say(type="pong")
    state(page).to_have_text("Live")
