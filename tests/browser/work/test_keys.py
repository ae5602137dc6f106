"""API keys: created, used, rotated, and revoked while an answer runs."""

from __future__ import annotations

import re

import pytest
from openai import APIError, AuthenticationError, OpenAI, RateLimitError
from playwright.sync_api import Page, expect

from demo import MODEL_NAME
from tests.browser.people import Customer, completion, create_key, follow, go, long_stream
from tests.stack.asking import until

pytestmark = pytest.mark.stack


def test_a_key_revoked_in_mid_stream_ends_it_and_is_refused(
    owner: Page, customer: Customer
) -> None:
    go(owner, "API keys")
    secret = create_key(owner, "brief")
    with customer.program(secret) as program:
        stream = long_stream(program, MODEL_NAME)
        assert next(stream).choices
        revoke(owner, "brief")
        with pytest.raises(APIError) as ended:
            list(stream)
        assert ended.value.code == "api_key_revoked"
        with pytest.raises(AuthenticationError) as refused:
            program.models.list()
        assert refused.value.code == "invalid_api_key"


def revoke(page: Page, name: str) -> None:
    """On the page of API keys: revoke the key of this name."""
    row = page.get_by_role("row", name=name)
    row.get_by_role("button", name="Revoke").click()
    dialog = page.get_by_role("dialog", name=f"Revoke “{name}”?")
    follow(page, dialog.get_by_role("button", name="Revoke"))
    expect(page.get_by_text(f"“{name}” is revoked.")).to_be_visible()
    follow(page, page.get_by_role("link", name=re.compile(r"Show \d+ revoked")))
    expect(row).to_contain_text("Revoked")


def test_keys_are_found_as_one_types_and_revoked_together(owner: Page) -> None:
    go(owner, "API keys")
    for name in ("alpha one", "alpha two", "beta"):
        create_key(owner, name)
    search = owner.get_by_label("Filter by name or prefix")
    search.press_sequentially("alpha")
    rows = owner.get_by_role("row").filter(has=owner.get_by_role("checkbox", name="Select alpha"))
    expect(owner.get_by_role("row", name="beta")).to_have_count(0)
    expect(rows).to_have_count(2)
    expect(search).to_be_focused()
    expect(owner).to_have_url(re.compile("q=alpha$"))
    owner.get_by_label("Select all").check()
    expect(owner.get_by_role("status").get_by_text("2 selected")).to_be_visible()
    owner.get_by_role("form", name="Selected rows").get_by_role("button", name="Revoke").click()
    dialog = owner.get_by_role("dialog", name="Revoke the selected keys?")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    follow(owner, dialog.get_by_role("button", name="Revoke"))
    expect(owner.get_by_text("2 keys are revoked.")).to_be_visible()
    follow(owner, owner.get_by_role("link", name="Show 2 revoked"))
    expect(owner.get_by_role("row", name="Revoked")).to_have_count(2)
    expect(owner.get_by_label("Select beta")).to_be_visible()


def test_a_rotated_key_hands_over_to_a_new_one(owner: Page, customer: Customer) -> None:
    go(owner, "API keys")
    create_key(owner, "another")
    old = create_key(owner, "billing")
    owner.get_by_role("row", name="another").get_by_role("button", name="Rotate").click()
    dialog = owner.get_by_role("dialog", name="Rotate “another”")
    dialog.get_by_label("Old key expires").select_option("at once")
    dialog.get_by_role("button", name="Cancel").click()
    owner.get_by_role("row", name="billing").get_by_role("button", name="Rotate").click()
    dialog = owner.get_by_role("dialog", name="Rotate “billing”")
    expect(dialog.get_by_label("Old key expires")).to_have_value("1")  # not the choice above
    dialog.get_by_label("Old key expires").select_option("in a week")
    follow(owner, dialog.get_by_role("button", name="Rotate"))
    shown = owner.get_by_role("region", name="Your new key").locator("pre")
    new = shown.inner_text()
    assert new != old
    expect(owner.get_by_role("row", name="Expires soon")).to_have_count(1)
    for secret in (old, new):
        with customer.program(secret) as program:
            assert MODEL_NAME in {model.id for model in program.models.list()}


def test_limits_of_a_key_are_set_in_its_row_and_lead_to_what_they_refused(
    owner: Page, customer: Customer
) -> None:
    go(owner, "API keys")
    secret = create_key(owner, "mobile app")
    row = owner.get_by_role("row", name="mobile app")
    row.get_by_role("link", name="No limit").click()
    dialog = owner.get_by_role("dialog", name="Limits of “mobile app”")
    dialog.get_by_label("Requests per minute").fill("1")
    follow(owner, dialog.get_by_role("button", name="Save"))
    expect(row).to_contain_text("1 requests per minute")
    with customer.program(secret) as program:
        until(lambda: is_limited(program))
    until(lambda: owner.reload() and row.get_by_text("refused in 24 hours").is_visible())
    follow(owner, row.get_by_role("link", name="refused in 24 hours"))
    refused = owner.get_by_role("row").filter(has_text="rate_limit_exceeded").first
    refused.get_by_role("link").first.click()
    drawer = owner.get_by_role("dialog", name="Request")
    expect(drawer.get_by_text("Requests per minute of the key")).to_be_visible()
    follow(owner, drawer.get_by_role("link", name="See this limit"))
    expect(owner.get_by_role("heading", name="Limits of the key “mobile app”")).to_be_visible()


def is_limited(program: OpenAI) -> bool:
    try:
        completion(program, MODEL_NAME, 2)
    except RateLimitError:
        return True
    return False
