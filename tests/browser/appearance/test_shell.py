"""The shell around every page: sidebar, menus, messages, the alert of a lost connection; and what
all tables and dialogs have in common."""

from __future__ import annotations

import pytest
from openai import NotFoundError
from playwright.sync_api import Page, ViewportSize, expect

from demo import MODEL_NAME
from tests.browser.people import (
    Customer,
    Street,
    completion,
    create_key,
    follow,
    go,
    live_state,
    long_stream,
    open_account,
)
from tests.browser.playground import pane

pytestmark = pytest.mark.stack

SHORT = ViewportSize(width=1280, height=720)
WIDE = ViewportSize(width=1440, height=900)
TELEPHONE = ViewportSize(width=390, height=844)
HELD_MODEL = "one => one.querySelector('[data-field=model]').clientWidth"
FOCUSED = "document.activeElement.name || document.activeElement.textContent.trim()"


def test_an_operator_has_one_navigation_at_a_time_and_all_of_it_in_sight(
    operator: Page, customer: Customer
) -> None:
    operator.set_viewport_size(SHORT)
    sidebar = operator.get_by_role("complementary")
    for place in ("/operate/", customer.page()):
        operator.goto(place)
        expect(sidebar.get_by_role("navigation")).to_have_count(1)
        titles = sidebar.get_by_role("navigation").get_by_role("link").all_inner_texts()
        assert len(set(titles)) == len(titles)
        expect(sidebar.get_by_role("link", name=titles[-1], exact=True)).to_be_in_viewport(ratio=1)
        open_account(operator)
        expect(operator.get_by_role("button", name="Sign out")).to_be_in_viewport(ratio=1)
    switcher = sidebar.locator("details.switcher")
    switcher.locator("summary").click()
    expect(switcher.get_by_text("lorikeet-isolation")).to_have_count(0)
    follow(operator, switcher.get_by_role("link", name="Installation"))
    expect(sidebar.get_by_role("navigation", name="Installation")).to_be_visible()
    go(operator, "Usage")
    expect(operator.get_by_role("heading", name="Usage and cost of all tenants")).to_be_visible()
    follow(operator, sidebar.get_by_role("link", name="Documentation"))
    contents = operator.get_by_role("navigation", name="Documentation")
    follow(operator, contents.get_by_role("link", name="Operate"))
    expect(operator.get_by_role("heading", name="Operate", exact=True)).to_be_visible()
    follow(operator, contents.get_by_role("link", name="API reference"))
    expect(operator.get_by_role("heading", name="Lorikeet")).to_be_visible()
    expect(operator.locator(".opblock").first).to_be_visible()


def test_dialogs_messages_and_secrets(owner: Page, street: Street) -> None:
    go(owner, "API keys")
    secret = create_key(owner, "first")
    expect(owner.get_by_role("region", name="Your new key").get_by_role("button")).to_be_focused()
    owner.reload()
    expect(owner.get_by_text(secret)).to_have_count(0)
    expect(owner.get_by_role("row")).to_have_count(2)  # the header and one key
    owner.get_by_role("button", name="Create key").first.click()
    assert owner.evaluate(FOCUSED) == "name"
    street.witness.allow("422 ")
    form = owner.locator("#new-key form")
    form.evaluate("form => { form.noValidate = true; }")
    form.get_by_label("Name").fill("x")
    form.get_by_label("Call models", exact=True).uncheck()
    follow(owner, form.get_by_role("button", name="Create"))
    assert owner.evaluate(FOCUSED) == "scopes"
    owner.keyboard.press("Escape")
    owner.get_by_role("button", name="Revoke").first.click()
    assert owner.evaluate(FOCUSED) == "Cancel"
    dialog = owner.get_by_role("dialog")
    follow(owner, dialog.get_by_role("button", name="Revoke"))
    message = owner.locator(".flash")
    expect(message).to_contain_text("is revoked")
    box, below = message.bounding_box(), owner.locator(".page-head").bounding_box()
    assert box is not None and below is not None and box["y"] + box["height"] <= below["y"]
    message.get_by_role("button", name="Dismiss").click()
    expect(message).to_have_count(0)


def test_the_head_and_the_actions_of_a_table_stay_in_sight(owner: Page, customer: Customer) -> None:
    """On a telephone the actions would cover the columns beside them: they scroll with those."""
    for _ in range(30):
        customer.key()
    go(owner, "API keys")
    for size in (SHORT, TELEPHONE):
        owner.set_viewport_size(size)
        rows = owner.get_by_role("row")
        expect(rows).to_have_count(31)
        rows.last.scroll_into_view_if_needed()
        expect(owner.get_by_role("columnheader").first).to_be_in_viewport()
        revoke = rows.last.get_by_role("button", name="Revoke")
        if size == TELEPHONE:
            assert rows.last.evaluate(COVERS_NOTHING)
            revoke.scroll_into_view_if_needed()
        expect(revoke).to_be_in_viewport(ratio=1)
        assert owner.evaluate("document.documentElement.scrollWidth <= innerWidth"), size


COVERS_NOTHING = """row => {
  const [before, last] = [...row.cells].slice(-2).map((cell) => cell.getBoundingClientRect());
  return before.right <= last.left + 1;
}"""


def test_the_head_of_the_requests_stays_in_sight(owner: Page, customer: Customer) -> None:
    program = customer.program(customer.key())
    for _ in range(18):
        with pytest.raises(NotFoundError):
            completion(program, "nobody", 1)
    go(owner, "Requests")
    for size in (SHORT, WIDE):
        owner.set_viewport_size(size)
        rows = owner.get_by_role("row")
        expect(rows).to_have_count(19)
        owner.mouse.move(700, 500)
        for _ in range(4):
            owner.mouse.wheel(0, 2000)
        expect(rows.last).to_be_in_viewport()
        head = owner.get_by_role("columnheader", name="Status")
        expect(head).to_be_in_viewport(ratio=1)
        assert head.evaluate(IS_ON_TOP), size


IS_ON_TOP = """one => {
  const { left, top, width, height } = one.getBoundingClientRect();
  return one.contains(document.elementFromPoint(left + width / 2, top + height / 2));
}"""


def test_a_held_tail_and_a_lost_connection_are_said(
    owner: Page, customer: Customer, street: Street
) -> None:
    with customer.program(customer.key()) as program:
        long_stream(program, MODEL_NAME, 5).close()
    owner.clock.install()  # before the page sets its timers
    go(owner, "Requests")
    expect(live_state(owner)).to_have_text("Live")
    owner.get_by_role("button", name="Pause").click()
    expect(live_state(owner)).to_have_text("Paused")
    owner.get_by_role("button", name="Resume").click()
    expect(live_state(owner)).to_have_text("Live")
    street.witness.allow("console: WebSocket connection", "net::ERR_", "502 ", "503 ")
    owner.context.route("**/tickets", lambda route: route.abort())
    owner.context.set_offline(True)
    alert = owner.get_by_role("alert").get_by_text("No connection to the gateway since")
    owner.clock.run_for(60_000)  # until the silence is noticed
    expect(alert).to_be_visible()
    expect(live_state(owner)).to_have_text("Reconnecting")
    owner.context.set_offline(False)
    owner.context.unroute("**/tickets")
    owner.clock.run_for(60_000)
    expect(alert).to_have_count(0)
    expect(live_state(owner)).to_have_text("Live")


def test_four_panes_stand_two_by_two(owner: Page) -> None:
    owner.set_viewport_size({"width": 1440, "height": 900})
    go(owner, "Playground")
    for _ in range(3):
        owner.get_by_role("button", name="Add pane").click()
    boxes = [pane(owner, number).bounding_box() for number in (1, 2, 3, 4)]
    assert all(box is not None for box in boxes)
    lefts, tops = ({round(box[side]) for box in boxes if box} for side in ("x", "y"))
    assert (len(lefts), len(tops)) == (2, 2)
    assert all(pane(owner, number).evaluate(HELD_MODEL) > 240 for number in (1, 2, 3, 4))


def test_times_are_local_or_utc(street: Street, customer: Customer, owner: Page) -> None:
    customer.key()
    expect(owner.locator("html")).to_have_attribute("data-zone", "UTC")
    go(owner, "API keys")
    open_account(owner)
    with owner.expect_event("domcontentloaded"):
        owner.get_by_label("Times").select_option("UTC")
    assert "zone=UTC" in owner.evaluate("document.cookie")
