"""Single sign-on in a browser: to the provider, which is another site, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from secrets import token_hex

import pytest
from playwright.sync_api import Page, expect

from tests.browser.people import Customer, Street, follow, open_account
from tests.browser.sweep import Sweep
from tests.frontend.sign_in.identity_provider import IdentityProvider

pytestmark = pytest.mark.stack

CONNECTIONS = "/account/3rdparty/"


@pytest.fixture
def name(provider: IdentityProvider, street: Street) -> str:
    """The name of a new person whom the provider signs in."""
    street.witness.allow(f"request elsewhere: {provider.issuer}/authorize")
    name = f"ann-{token_hex(3)}"
    provider.person = {"sub": name, "email": f"{name}@example.com", "email_verified": True}
    provider.person |= {"name": "Ann Ames", "preferred_username": name}
    return name


@pytest.fixture
def sweep(street: Street) -> Iterator[Sweep]:
    """A browser; asserts at the end that the pages it checked have no findings in any look."""
    sweep = Sweep("somebody", street.person(), street.witness)
    yield sweep
    assert not sweep.findings, sweep.report


def sign_on(page: Page, decision: str = "Continue as Ann Ames") -> None:
    """Go from a page with the button to the provider's page, and decide there."""
    page.get_by_role("button", name="Parrot ID").click()
    follow(page, page.get_by_role("button", name=decision))


def join(page: Page, customer: Customer, name: str) -> None:
    """Accept an invitation as somebody whom the provider signs in."""
    page.goto(customer.invite("developer"))
    follow(page, page.get_by_role("link", name="Sign in"))
    sign_on(page)
    follow(page, page.get_by_role("button", name=f"Join as {name}"))
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def lose_session(page: Page) -> None:
    """Remove the session, after leaving the page: a live page that finds its session gone goes to
    the sign-in by itself, which would abort the test's next navigation."""
    page.goto("about:blank")
    page.context.clear_cookies()


def test_who_was_invited_joins_and_later_lands_where_the_sign_in_began(
    sweep: Sweep, customer: Customer, name: str
) -> None:
    page = sweep.page
    join(page, customer, name)
    lose_session(page)
    page.goto(customer.page("usage"))
    sweep.look_here("the sign-in page")
    sign_on(page)
    expect(page.get_by_role("heading", name="Usage and cost")).to_be_visible()
    expect(page).to_have_url(re.compile(f"{customer.page('usage')}$"))
    open_account(page)
    follow(page, page.get_by_role("link", name="Second factor"))
    follow(page, page.get_by_role("link", name="Single sign-on"))
    follow(page, page.get_by_role("button", name="Disconnect"))
    expect(page.get_by_role("alert")).to_contain_text("your only way to sign in")
    sweep.look_here("what signs in")


def test_nobody_is_signed_in_by_an_address_that_is_unknown_or_unverified(
    sweep: Sweep, provider: IdentityProvider, customer: Customer, name: str
) -> None:
    page = sweep.page
    page.goto(customer.page())
    sign_on(page)
    expect(page.get_by_role("heading", name="Accounts are by invitation only")).to_be_visible()
    expect(page.get_by_text(f"{name}@example.com, which has no account here")).to_be_visible()
    sweep.look_here("an unknown address")

    join(page, customer, name)
    lose_session(page)
    provider.person |= {"sub": "somebody else", "email_verified": False}
    page.goto(customer.page())
    sign_on(page)
    expect(page.get_by_text("but has not verified that this address is yours")).to_be_visible()
    sweep.look_here("an unverified address")
    page.goto(customer.page())
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_who_cancels_or_whose_provider_fails_can_try_again(
    sweep: Sweep, provider: IdentityProvider, customer: Customer, name: str
) -> None:
    page = sweep.page
    join(page, customer, name)
    lose_session(page)
    page.goto(customer.page("keys"))
    sign_on(page, "Cancel")
    expect(page.get_by_text("Single sign-on was cancelled.")).to_be_visible()
    sweep.look_here("a sign-in that was cancelled")

    sweep.witness.allow("401 ")
    provider.broken = {"/token"}
    follow(page, page.get_by_role("link", name="Sign in"))
    sign_on(page)
    expect(page.get_by_text("Single sign-on failed.")).to_be_visible()
    sweep.look_here("a sign-in that failed")

    provider.broken = set()
    follow(page, page.get_by_role("link", name="Sign in"))
    sign_on(page)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_somebody_with_a_password_connects_it_and_disconnects_it(
    street: Street, owner: Page, customer: Customer, name: str
) -> None:
    sweep = Sweep("owner", owner, street.witness)
    owner.goto(CONNECTIONS)
    sweep.look_here("a way in that is not connected")
    sign_on(owner)
    expect(owner.get_by_text("Single sign-on is connected")).to_be_visible()
    sweep.look_here("a way in that is connected")

    lose_session(owner)
    owner.goto(customer.page("members"))
    sign_on(owner)
    expect(owner.get_by_role("heading", name="Members")).to_be_visible()
    account = owner.get_by_role("complementary").locator("details.account")
    expect(account).to_contain_text(f"owner-of-{customer.slug}")

    owner.goto(CONNECTIONS)
    follow(owner, owner.get_by_role("button", name="Disconnect"))
    expect(owner.get_by_role("button", name="Parrot ID")).to_be_visible()
    assert not sweep.findings, sweep.report
