"""A new customer, from the operator's invitation to the first answer."""

from __future__ import annotations

import os
import subprocess
import sys
from secrets import token_hex

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.adapters import SUPPORT
from tests.browser.people import (
    Street,
    await_ready,
    copied,
    create_key,
    follow,
    go,
    invite,
    join,
    upload,
)

pytestmark = pytest.mark.stack

ADAPTER, KEY, REQUEST = (
    "Adapter live",
    "API key created",
    "First request answered",
)


def step(page: Page, title: str) -> Locator:
    """A step of the checklist."""
    return page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=title))


def test_from_an_invitation_to_the_first_answer(street: Street, operator: Page) -> None:
    name = f"Newcomer {token_hex(3)}"
    link = tenant_with_invitation(operator, name)
    admin = street.person()
    join(admin, link, f"admin-{token_hex(3)}")
    expect(admin.get_by_role("heading", name="Overview")).to_be_visible()
    for title in (ADAPTER, KEY, REQUEST):
        expect(step(admin, title)).to_contain_text("(to do)")

    go(admin, "Adapters")
    upload(admin, "dispatcher", SUPPORT)
    await_ready(admin)

    go(admin, "API keys")
    secret = create_key(admin, "first program")
    expect(admin.get_by_role("row", name="first program")).to_contain_text("Active")
    go(admin, "API keys")
    expect(admin.locator("body")).not_to_contain_text(secret)

    go(admin, "Overview")
    expect(step(admin, ADAPTER)).to_contain_text("(done)")
    expect(step(admin, KEY)).to_contain_text("(done)")
    expect(step(admin, REQUEST)).to_contain_text("(to do)")
    assert run(snippet(admin), secret)
    expect(step(admin, REQUEST)).to_contain_text("(done)")  # without a reload
    figure = admin.locator(".health .stat").first.locator("dd").first
    expect(figure).to_have_text("1")  # also without a reload


def tenant_with_invitation(operator: Page, name: str) -> str:
    """Create a tenant as an operator does for a new customer. Returns its first invitation."""
    go(operator, "Tenants")
    operator.get_by_role("button", name="Create tenant").first.click()
    dialog = operator.get_by_role("dialog", name="Create tenant")
    dialog.get_by_label("Name").fill(name)
    expect(dialog.get_by_label("Slug")).to_have_value(name.lower().replace(" ", "-"))
    follow(operator, dialog.get_by_role("button", name="Create"))
    expect(operator.get_by_text(f"{name} created.")).to_be_visible()
    follow(operator, operator.get_by_role("link", name="Invite its first owner"))
    return invite(operator, "admin")


def snippet(page: Page) -> str:
    """The Python program that the overview offers."""
    page.get_by_role("tab", name="Python").click()
    return copied(page, page.get_by_role("tabpanel", name="Python"))


def run(program: str, key: str) -> str:
    """The program's output, with this key in its environment."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"LORIKEET_KEY": key},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
