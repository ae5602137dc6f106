"""The live list of requests for its reader: paused, with a request open, by keyboard."""

from __future__ import annotations

import re

import pytest
from openai import NotFoundError
from playwright.sync_api import Locator, Page, expect

from demo import MODEL_NAME
from tests.browser.people import Customer, completion, follow, go, live_state, staying

pytestmark = pytest.mark.stack


def asked(customer: Customer, times: int) -> None:
    with customer.program(customer.key()) as program:
        for _ in range(times):
            completion(program, MODEL_NAME, 2)


def rows(page: Page) -> Locator:
    return page.get_by_role("row").filter(has_text=MODEL_NAME)


def test_what_comes_while_somebody_reads_is_held(owner: Page, customer: Customer) -> None:
    asked(customer, 1)
    go(owner, "Requests")
    expect(rows(owner)).to_have_count(1)
    expect(live_state(owner)).to_have_text("Live")
    owner.get_by_role("button", name="Pause").click()
    asked(customer, 2)
    expect(owner.get_by_role("button", name="2 new")).to_be_visible()
    expect(rows(owner)).to_have_count(1)
    owner.get_by_role("button", name="Resume").click()
    expect(rows(owner)).to_have_count(3)
    rows(owner).nth(2).get_by_role("link").press("Enter")
    drawer = owner.get_by_role("dialog", name="Request")
    expect(drawer.get_by_role("button", name="Close")).to_be_focused()
    one = owner.url
    asked(customer, 1)
    expect(owner.locator("#fresh")).to_have_text("1 new")
    owner.keyboard.press("Escape")
    expect(rows(owner)).to_have_count(4)
    expect(rows(owner).nth(3).get_by_role("link")).to_be_focused()
    assert owner.url != one
    owner.goto(one)
    expect(owner.get_by_role("heading", name="Request", exact=True)).to_be_visible()


def test_a_refused_request_comes_by_itself_and_says_why(owner: Page, customer: Customer) -> None:
    asked(customer, 1)
    go(owner, "Requests")
    expect(live_state(owner)).to_have_text("Live")
    with customer.program(customer.key()) as program, staying(owner):
        with pytest.raises(NotFoundError):
            completion(program, "no-such-model", 2)
        refused = owner.get_by_role("row").filter(has_text="model_not_found")
        expect(refused).to_have_count(1)
        expect(refused.get_by_text("404")).to_be_visible()
        refused.get_by_role("link").first.click()
        drawer = owner.get_by_role("dialog", name="Request")
        expect(drawer.get_by_text("does not exist or you do not have access")).to_be_visible()
        owner.keyboard.press("Escape")
    go(owner, "Overview")
    wrong = owner.get_by_role("link", name=re.compile("50%: Errors and refusals"))
    wrong.click()
    expect(owner).to_have_url(re.compile("outcome=wrong"))
    expect(refused).to_have_count(1)
    expect(rows(owner)).to_have_count(0)


def test_filters_act_at_once_and_the_keyboard_goes_through_what_is_left(
    owner: Page, customer: Customer
) -> None:
    asked(customer, 3)
    with customer.program(customer.key()) as program, pytest.raises(NotFoundError):
        completion(program, "no-such-model", 2)
    go(owner, "Requests")
    found = owner.locator(".requests tbody tr")
    expect(found).to_have_count(4)
    with staying(owner):
        owner.keyboard.press("/")
        owner.keyboard.type("no-such")
        expect(found).to_have_count(1)
        expect(owner).to_have_url(re.compile(r"\?q=no-such&period=24h$"))
        owner.get_by_label("Search").fill("")
        owner.get_by_label("Status").select_option("cut")
        expect(found).to_have_count(3)
        expect(owner).to_have_url(re.compile(r"\?period=24h&outcome=cut$"))
        asked(customer, 1)  # the new list is live as well
        expect(found).to_have_count(4)
        owner.keyboard.press("Tab")
        owner.locator("h1").click()
        owner.keyboard.press("j")
        expect(found.first.get_by_role("rowheader").get_by_role("link")).to_be_focused()
        owner.keyboard.press("j")
        owner.keyboard.press("Enter")
        drawer = owner.get_by_role("dialog", name="Request")
        expect(found.nth(1)).to_have_attribute("aria-current", "true")
        owner.keyboard.press("j")
        expect(found.nth(2)).to_have_attribute("aria-current", "true")
        third = found.nth(2).get_attribute("id")
        expect(drawer.locator("pre").first).to_have_text(f"req_{(third or '')[2:]}")
        drawer.get_by_role("button", name="Newer request").click()
        expect(found.nth(1)).to_have_attribute("aria-current", "true")
        expect(drawer.get_by_role("link", name="Open in playground")).to_be_visible()
        owner.keyboard.press("Escape")
        expect(drawer).to_be_hidden()
        expect(owner).to_have_url(re.compile(r"outcome=cut$"))
    owner.get_by_role("button", name="Save view").click()
    dialog = owner.get_by_role("dialog", name="Save view")
    dialog.get_by_label("Name").fill("Fine ones")
    follow(owner, dialog.get_by_role("button", name="Save"))
    go(owner, "Requests")
    owner.locator("summary").filter(has_text="Saved views").click()
    follow(owner, owner.get_by_role("link", name="Fine ones", exact=True))
    expect(owner.get_by_label("Status")).to_have_value("cut")
    with owner.expect_download() as saved:
        owner.get_by_role("link", name="CSV").click()
    assert saved.value.path().read_text().count("\n") == 5


def test_an_operator_follows_the_requests_of_a_tenant_and_opens_one(
    operator: Page, customer: Customer
) -> None:
    operator.goto(f"/operate/requests?tenant={customer.slug}")
    expect(live_state(operator)).to_have_text("Live")
    with staying(operator):
        for count in (1, 2):
            asked(customer, 1)
            expect(rows(operator)).to_have_count(count)
        newest = rows(operator).first
        expect(newest.get_by_role("link", name=customer.slug)).to_be_visible()
        newest.get_by_role("rowheader").get_by_role("link").click()
        drawer = operator.get_by_role("dialog", name="Request")
        expect(drawer.get_by_role("row", name="Output")).to_be_visible()
        operator.keyboard.press("Escape")
        expect(drawer).not_to_be_visible()
        expect(operator).to_have_url(re.compile(f"tenant={customer.slug}$"))
