"""Conversations in the playground: versions, saving, sharing, and returning to one."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from playwright.sync_api import Page, Route, expect

from demo import MODEL_NAME, QUESTIONS
from frontend.formats import money
from inference.interfaces.directory import PICO
from tests.browser.people import Customer, Street, follow, go, join, open_account, sign_in
from tests.browser.playground import (
    LONG,
    answer_to,
    ask,
    foot,
    log,
    open_playground,
    output,
    pane,
    settings,
)
from tests.stack.asking import until

pytestmark = pytest.mark.stack

QUESTION, OTHER = (question for question, _ in QUESTIONS[:2])


@pytest.fixture
def page(owner: Page) -> Page:
    """The owner's page, at the playground."""
    open_playground(owner)
    return owner


@pytest.fixture
def colleague(street: Street, customer: Customer) -> Page:
    """The page of a developer of the same customer."""
    page = street.person(dark=True)
    join(page, customer.invite("developer"), f"developer-of-{customer.slug}")
    return page


def answered(page: Page, question: str) -> None:
    idle(page)
    ask(page, question)
    idle(page)
    expect(foot(pane(page))).to_be_visible()


def idle(page: Page) -> None:
    """Wait until no answer is being written."""
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()


def saved(page: Page) -> None:
    expect(page.get_by_role("status").get_by_text("Saved", exact=True)).to_be_visible()


def test_an_edited_question_and_another_answer_are_versions(page: Page) -> None:
    answered(page, QUESTION)
    answered(page, OTHER)
    log(page).get_by_role("button", name="Edit").first.press("Enter")
    page.get_by_label("Edit the message").fill("Hello")
    page.get_by_label("Edit the message").press("Control+Enter")
    expect(log(page).get_by_label("Version 2 of 2")).to_be_visible()
    expect(log(page).get_by_text("req_")).to_have_count(1)
    expect(log(page).get_by_text(OTHER, exact=True)).to_have_count(0)

    log(page).get_by_role("button", name="Earlier version").press("Enter")
    expect(log(page).get_by_text(OTHER, exact=True)).to_be_visible()
    expect(log(page).get_by_text(answer_to(QUESTION), exact=True)).to_be_visible()
    expect(log(page).get_by_role("button", name="Later version")).to_be_focused()
    log(page).get_by_role("button", name="Retry").last.press("Enter")
    expect(log(page).get_by_label("Version 2 of 2")).to_be_visible()
    expect(log(page).get_by_text("req_")).to_have_count(2)
    log(page).get_by_role("button", name="Edit").last.click()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Edit the message")).to_have_count(0)


def test_a_conversation_is_kept_once_it_is_saved_and_goes_on_by_its_address(page: Page) -> None:
    answered(page, QUESTION)
    expect(page.get_by_role("button", name="Rename")).to_be_hidden()
    page.get_by_role("button", name="Save", exact=True).click()
    saved(page)
    expect(page).to_have_url(re.compile(r"/playground/conversations/\d+/$"))
    expect(page.get_by_role("heading", name=QUESTION)).to_be_visible()
    log(page).get_by_role("button", name="Retry").click()
    expect(log(page).get_by_label("Version 2 of 2")).to_be_visible()
    answered(page, OTHER)
    saved(page)
    figures = foot(pane(page)).inner_text()

    page.reload()
    expect(log(page).get_by_text("req_")).to_have_count(2)
    expect(foot(pane(page))).to_have_text(figures)
    expect(log(page).get_by_label("Version 2 of 2")).to_be_visible()
    expect(pane(page).get_by_label("Model or adapter")).to_have_value(MODEL_NAME)
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title").fill("Geography")
    follow(page, page.get_by_role("dialog").get_by_role("button", name="Rename"))
    expect(page.get_by_role("heading", name="Geography")).to_be_visible()

    follow(page, page.get_by_role("link", name="Conversations").last)
    page.get_by_label("Filter by title").fill("geo")
    expect(page).to_have_url(re.compile("q=geo"))
    page.get_by_role("button", name="Rename: Geography").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Title")).to_have_value("Geography")
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Delete: Geography").click()
    follow(page, page.get_by_role("dialog").get_by_role("button", name="Delete"))
    expect(page.get_by_text("No saved conversations yet.")).to_be_visible()


def test_what_changes_while_it_is_saved_first_is_saved_too(page: Page) -> None:
    answered(page, QUESTION)
    pane(page).get_by_role("button", name="Settings").click()

    def late(route: Route) -> None:
        settings(page).get_by_label("Show token probabilities").check()
        route.continue_()

    page.route("**/playground/conversations", late)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("button", name="Share")).to_be_visible()
    saved(page)
    page.reload()
    expect(settings(page).get_by_label("Show token probabilities")).to_be_checked()


def test_a_page_that_is_loaded_again_goes_on_where_it_was(page: Page, customer: Customer) -> None:
    """In mid-stream, before and after the conversation is saved, and after leaving the page."""
    page.get_by_role("button", name="Add pane").click()
    idle(page)
    ask(page, LONG)
    for number in (1, 2):
        expect(output(pane(page, number))).to_contain_text("word5 ")
    page.get_by_label("Message").fill("And then")
    page.reload()
    for number in (1, 2):
        expect(output(pane(page, number))).to_have_text(answer_to(LONG))
        expect(foot(pane(page, number))).to_be_visible()
    pane(page).get_by_role("button", name="Settings").click()
    expect(settings(page).get_by_label("Temperature")).to_have_value("0")
    settings(page).get_by_role("button", name="Close settings").click()
    expect(page.get_by_label("Message")).to_have_value("And then")
    expect(page.get_by_role("status").get_by_text("Draft")).to_be_visible()

    page.get_by_role("button", name="Save", exact=True).click()
    saved(page)
    ask(page, LONG)
    expect(output(pane(page))).to_contain_text("word5 ")
    page.reload()
    expect(output(pane(page))).to_have_text(answer_to(LONG))
    expect(pane(page).get_by_role("log").get_by_text("req_")).to_have_count(2)
    saved(page)
    go(page, "Adapters")
    go(page, "Playground")
    expect(page.get_by_text("No messages yet.")).to_have_count(1)  # the draft was saved

    def used() -> list[tuple[str, int]]:
        asked = {"by": "member", "bucket": "all", "tenant": customer.slug}
        rows = customer.office.get("/api/v1/usage", params=asked).json()["results"]
        return [(row["member"], row["requests"]) for row in rows]

    # Nothing was generated twice, and all usage is the member's.
    until(lambda: used() == [(f"owner-of-{customer.slug}", 4)])


def test_a_question_that_was_left_without_an_answer_can_be_gone_on_from(page: Page) -> None:
    answered(page, QUESTION)
    page.get_by_role("button", name="Save", exact=True).click()
    saved(page)
    ask(page, LONG)
    expect(output(pane(page))).to_contain_text("word5 ")
    saved(page)
    other = page.context.new_page()  # as after a crash: it has nothing of the answer
    other.goto(page.url)
    expect(log(other).get_by_role("button", name="Answer")).to_be_visible()
    page.close()
    ask(other, OTHER)
    expect(log(other).get_by_label("Version 2 of 2")).to_be_visible()
    idle(other)
    saved(other)
    other.reload()
    expect(log(other).get_by_text(answer_to(OTHER), exact=True)).to_be_visible()


def test_two_tabs_do_not_undo_each_other(page: Page, street: Street) -> None:
    answered(page, QUESTION)
    page.get_by_role("button", name="Save", exact=True).click()
    saved(page)
    other = page.context.new_page()
    other.goto(page.url)
    expect(log(other).get_by_text("req_")).to_have_count(1)
    answered(page, OTHER)
    saved(page)
    street.witness.allow("409 ")
    answered(other, "Hello")
    expect(other.get_by_role("status").get_by_text("Not saved")).to_be_visible()
    expect(other.get_by_role("alert").get_by_text("changed elsewhere")).to_be_visible()


def test_what_is_shared_is_read_in_the_tenant_until_the_link_is_revoked(
    page: Page, colleague: Page, street: Street
) -> None:
    answered(page, QUESTION)
    page.get_by_role("button", name="Save", exact=True).click()
    saved(page)
    page.get_by_role("button", name="Share").click()
    follow(page, page.get_by_role("button", name="Create link"))
    link = page.locator("#share-link").inner_text()

    colleague.goto(link)
    expect(log(colleague).get_by_text(answer_to(QUESTION), exact=True)).to_be_visible()
    expect(colleague.get_by_role("button", name="Send")).to_have_count(0)
    expect(log(colleague).get_by_role("button", name="Edit")).to_have_count(0)
    follow(colleague, colleague.get_by_role("button", name="Continue from here"))
    expect(colleague.get_by_role("status").get_by_text("Live")).to_be_visible()
    answered(colleague, OTHER)
    saved(colleague)

    follow(page, page.get_by_role("button", name="Revoke link"))
    expect(log(page).get_by_text("req_")).to_have_count(1)
    street.witness.allow("404 ")
    gone = colleague.goto(link)
    assert gone is not None and gone.status == 404


def test_a_session_that_ends_in_mid_stream_leads_to_signing_in_and_to_the_rest(
    page: Page, customer: Customer, street: Street
) -> None:
    street.witness.allow("401 ")  # for a ticket, without a session
    answered(page, QUESTION)
    ask(page, LONG)
    expect(output(pane(page))).to_contain_text("word5 ")
    page.get_by_label("Message").fill("And then")
    page.context.clear_cookies(name="sessionid")
    other = page.context.new_page()
    other.goto(customer.page())
    page.locator("lora-playground").evaluate("playground => playground.link.socket.close()")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(page, f"owner-of-{customer.slug}")
    expect(output(pane(page))).to_have_text(answer_to(LONG))
    expect(log(page).get_by_text("req_")).to_have_count(2)
    expect(page.get_by_label("Message")).to_have_value("And then")
    open_account(page)
    follow(page, page.get_by_role("button", name="Sign out"))
    assert page.evaluate("sessionStorage.length") == 0


def test_the_cost_that_is_shown_is_the_ledgers(page: Page, customer: Customer) -> None:
    answered(page, QUESTION)
    line = foot(pane(page))
    (price,) = re.findall(r"\$[\d.]+", line.inner_text())
    request = (line.get_by_role("link").get_attribute("href") or "").rpartition("/")[2]
    with customer.stack.client(customer.key("inference", "usage:read")) as program:
        where = f"/v1/usage/receipts/{request}"
        until(lambda: program.get(where).is_success)  # the ledger is written after the answer
        receipt = program.get(where).json()
    assert money(Decimal(receipt["receipt"]["cost"]) * PICO) == price
