"""Limits: set, reached in the playground, and shown."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from demo import MODEL_NAME
from tests.browser.people import Customer, Street, completion, follow, go
from tests.browser.playground import ask, feet, pane
from tests.stack.asking import until

pytestmark = pytest.mark.stack


def edit(page: Page, button: str, limit: str, figure: str) -> None:
    """On the page of limits: set one of them."""
    page.get_by_role("button", name=button).click()
    dialog = page.get_by_role("dialog", name=button)
    dialog.get_by_label(limit, exact=False).first.fill(figure)
    follow(page, dialog.get_by_role("button", name="Save"))


def line(page: Page, limit: str) -> Locator:
    """The table's row of a limit, with its usage and its values in force, set and allowed."""
    return page.get_by_role("row", name=limit).first  # not of trained tokens


def test_a_limit_is_met_in_the_pane_and_shown(owner: Page, customer: Customer) -> None:
    go(owner, "Limits")
    edit(owner, "Edit limits", "Requests per minute", "2")
    expect(owner.get_by_text("Limits saved.")).to_be_visible()
    with customer.program(customer.key()) as program:
        models = program.models.with_raw_response
        until(lambda: models.list().headers.get("x-ratelimit-limit-requests") == "2")

    go(owner, "Playground")
    for answers in (1, 2):
        ask(owner, "Hello")
        expect(feet(pane(owner))).to_have_count(answers)
    ask(owner, "Hello")
    notice = pane(owner).get_by_role("alert")
    said = (
        rf"Rate limit reached for tenant `{customer.slug}`: 2 requests per minute; "
        r"used 2, requested 1\. Try again in \d+ s\."
    )
    expect(notice.get_by_role("paragraph").first).to_have_text(re.compile(f"^{said}$"))

    go(owner, "Limits")
    used = line(owner, "Requests per minute").get_by_role("meter")
    expect(used).to_have_attribute("value", "2")


def test_what_is_used_is_shown_as_it_is_used(owner: Page, customer: Customer) -> None:
    go(owner, "Limits")
    edit(owner, "Edit limits", "Requests per minute", "100")
    used = line(owner, "Requests per minute").get_by_role("meter")
    expect(used).to_have_attribute("value", "0")
    with customer.program(customer.key()) as program:
        completion(program, MODEL_NAME, 2)
    expect(used).to_have_attribute("value", "1")


def test_nobody_lifts_a_limit_above_the_ceiling(
    street: Street, owner: Page, operator: Page, customer: Customer
) -> None:
    operator.goto(customer.page("limits"))
    edit(operator, "Edit ceiling", "Tokens per day", "5000")
    go(owner, "Limits")
    street.witness.allow("422 ")
    edit(owner, "Edit limits", "Tokens per day", "5001")
    dialog = owner.get_by_role("dialog", name="Edit limits")
    expect(dialog.get_by_role("alert")).to_have_text("5,001 is above the ceiling of 5,000.")
    dialog.get_by_label("Tokens per day").first.fill("400")
    follow(owner, dialog.get_by_role("button", name="Save"))
    cells = line(owner, "Tokens per day").get_by_role("cell")
    expect(cells.nth(2)).to_have_text("400")
    expect(cells.last).to_have_text("5,000")
