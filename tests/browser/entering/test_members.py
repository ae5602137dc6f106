"""Members with their roles, and the audit log."""

from __future__ import annotations

import re
from secrets import token_hex

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.people import Customer, Street, create_key, follow, go, invite, join

pytestmark = pytest.mark.stack

ODD = "<img src=x onerror=alert(1)><script>alert(1)</script>"


def links(page: Page) -> list[str]:
    """The texts of the sidebar's links."""
    navigation = page.get_by_role("complementary").get_by_role("navigation")
    return navigation.get_by_role("link").all_inner_texts()


def entry(page: Page, what: str) -> Locator:
    """The rows of the audit log with this text."""
    return page.get_by_role("row").filter(has_text=what)


def test_a_member_joins_by_link_and_sees_what_the_role_may(
    street: Street, owner: Page, customer: Customer
) -> None:
    name = f"dora-{token_hex(3)}"
    go(owner, "Members")
    link = invite(owner, "developer", "Dora")
    expect(owner.get_by_role("row", name="Dora Developer")).to_be_visible()
    dora = street.person()
    join(dora, link, name)
    expect(dora.get_by_role("heading", name="Overview")).to_be_visible()
    assert "Playground" in links(dora) and "Audit log" not in links(dora)
    dora.goto(link)
    expect(dora.get_by_role("heading", name="This invitation is no longer valid")).to_be_visible()

    go(owner, "Members")
    row = owner.get_by_role("row", name=name)
    row.get_by_role("button", name="Change role").click()
    dialog = owner.get_by_role("dialog", name=f"Change role of {name}")
    expect(dialog.get_by_role("radio", name="Developer")).to_be_checked()
    dialog.get_by_role("radio", name="Viewer").check()
    follow(owner, dialog.get_by_role("button", name="Save"))
    expect(owner.get_by_text(f"{name} now has the role viewer.")).to_be_visible()

    street.witness.allow("404 ", "403 ")
    dora.goto(customer.page())
    assert "Playground" not in links(dora)
    dora.goto(customer.page("playground"))
    expect(dora.get_by_role("heading", name="Not allowed")).to_be_visible()

    go(owner, "Audit log")
    changed = entry(owner, f"Changed member {name}")
    expect(changed).to_contain_text(f"owner-of-{customer.slug}")
    expect(changed).to_contain_text("127.0.0.1")
    changed.get_by_text("Changed member").click()
    expect(changed.get_by_role("row", name="role developer viewer")).to_be_visible()


def test_an_operators_look_is_in_the_tenants_log(
    owner: Page, operator: Page, customer: Customer
) -> None:
    go(owner, "Audit log")
    looks = entry(owner, f"Viewed tenant {customer.slug}")
    before = looks.count()
    go(operator, "Tenants")
    operator.get_by_label("Filter by name or slug").fill(customer.slug)
    expect(operator).to_have_url(re.compile(f"q={customer.slug}"))
    follow(operator, operator.get_by_role("link", name=f"Open {customer.name}"))
    follow(operator, operator.get_by_role("link", name="API keys").first)
    go(owner, "Audit log")
    expect(looks).to_have_count(before + 1)
    expect(looks.first).to_contain_text("operator")


def test_odd_names_are_text_wherever_they_stand(owner: Page, operator: Page) -> None:
    go(owner, "API keys")
    create_key(owner, ODD)
    expect(owner.get_by_role("rowheader", name=ODD)).to_be_visible()
    owner.get_by_role("row", name=ODD).get_by_role("button", name="Revoke").click()
    expect(owner.get_by_role("dialog", name=f"Revoke “{ODD}”?")).to_be_visible()
    owner.keyboard.press("Escape")
    go(owner, "Members")
    invite(owner, "viewer", ODD)
    expect(owner.get_by_role("rowheader", name=ODD)).to_be_visible()
    go(owner, "Limits")
    expect(owner.get_by_role("rowheader", name=ODD)).to_be_visible()
    go(owner, "Audit log")
    expect(entry(owner, f"Created API key {ODD}")).to_be_visible()
    expect(owner.locator("img")).to_have_count(0)
