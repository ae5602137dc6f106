"""Signing in: second factors, forgotten and guessed passwords, and sessions that end."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from secrets import token_hex

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.people import (
    PASSWORD,
    Customer,
    Street,
    follow,
    go,
    join,
    open_account,
    sign_in,
)
from tests.browser.playground import ask, foot, pane
from tests.stack.asking import until
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

PASSKEY_DEVICE = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}
"""A device of Chromium's own that holds passkeys."""
STEP_S = 30
"""Validity of an authenticator app's code."""


def sign_out(page: Page) -> None:
    open_account(page)
    follow(page, page.get_by_role("button", name="Sign out"))


def test_the_next_click_after_a_session_asks_to_sign_in_and_leads_on(
    owner: Page, customer: Customer
) -> None:
    go(owner, "API keys")  # has no live part, whose fetch would redirect first
    owner.context.clear_cookies(name="sessionid")
    go(owner, "Members")
    expect(owner.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(owner, f"owner-of-{customer.slug}")
    expect(owner.get_by_role("heading", name="Members")).to_be_visible()


def test_a_socket_without_its_session_leads_to_signing_in_and_back(
    owner: Page, customer: Customer
) -> None:
    owner.goto(customer.page("playground?model=lorikeet-demo"))
    expect(owner.get_by_role("status").get_by_text("Live")).to_be_visible()
    owner.get_by_label("Message").fill("Hello")
    other = owner.context.new_page()
    other.goto(customer.page())
    sign_out(other)
    owner.keyboard.press("Control+Enter")  # on any page: a ping may have redirected already
    expect(owner.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(owner, f"owner-of-{customer.slug}")
    expect(owner).to_have_url(re.compile(r"/playground\?model=lorikeet-demo$"))
    ask(owner, "Hello")
    expect(foot(pane(owner))).to_be_visible()


def test_a_second_factor_is_enrolled_and_asked_for(owner: Page, customer: Customer) -> None:
    name = f"owner-of-{customer.slug}"
    open_account(owner)
    follow(owner, owner.get_by_role("link", name="Second factor"))
    follow(owner, owner.get_by_role("link", name="Set up"))
    owner.get_by_label("Password").fill(PASSWORD)  # once more: it guards the account
    follow(owner, owner.get_by_role("button", name="Confirm"))
    secret = owner.get_by_label("Setup key").input_value()
    enter_code(owner, secret, "Set up")
    expect(owner.get_by_text("Authenticator app set up.")).to_be_visible()

    follow(owner, owner.get_by_role("link", name="Console"))
    sign_out(owner)
    owner.goto(customer.page("members"))
    sign_in(owner, name)
    expect(owner.get_by_role("heading", name="Second factor")).to_be_visible()
    enter_code(owner, secret, "Sign in")
    expect(owner.get_by_role("heading", name="Members")).to_be_visible()


def enter_code(page: Page, secret: str, button: str) -> None:
    """Enter the current code; a second time if it expired meanwhile."""
    here = page.url
    for _ in range(2):
        page.get_by_label("code").fill(code(secret))
        follow(page, page.get_by_role("button", name=button))
        if page.url != here:
            return


def code(secret: str) -> str:
    """The code that an authenticator app shows now (RFC 6238)."""
    counter = int(time.time()) // STEP_S
    digest = hmac.digest(base64.b32decode(secret), counter.to_bytes(8, "big"), hashlib.sha1)
    at = digest[-1] & 15
    number = int.from_bytes(digest[at : at + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**6:06d}"


def test_a_passkey_is_added_and_signs_in_alone(street: Street, customer: Customer) -> None:
    name, page = f"keyed-{token_hex(3)}", street.person()
    street.witness.allow("request elsewhere: http://localhost")
    console = customer.stack.console_url.replace("127.0.0.1", "localhost")
    device = page.context.new_cdp_session(page)
    device.send("WebAuthn.enable")
    device.send("WebAuthn.addVirtualAuthenticator", {"options": PASSKEY_DEVICE})
    join(page, customer.invite("viewer").replace("127.0.0.1", "localhost"), name)
    page.goto(f"{console}/account/2fa/webauthn/add/")
    page.get_by_label("Password").fill(PASSWORD)
    follow(page, page.get_by_role("button", name="Confirm"))
    page.get_by_label("Name").fill("Laptop")
    follow(page, page.get_by_role("button", name="Add passkey"))
    expect(page.get_by_role("heading", name="Recovery codes")).to_be_visible()
    page.goto(f"{console}/account/2fa/webauthn/")
    expect(page.get_by_text("Laptop")).to_be_visible()
    page.goto(f"{console}/account/logout/")
    follow(page, page.get_by_role("button", name="Sign out"))
    page.goto(f"{console}/account/login/")
    follow(page, page.get_by_role("button", name="Use a passkey"))
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_a_forgotten_password_is_replaced_by_mail(
    street: Street, stack: Stack, customer: Customer
) -> None:
    name = f"forgetful-{token_hex(3)}"
    mail, new = f"{name}@example.com", f"another {PASSWORD}"
    page = street.person()
    join(page, customer.invite("viewer"), name, mail)
    sign_out(page)
    page.goto("/")
    follow(page, page.get_by_role("link", name="Forgot your password?").first)
    page.get_by_label("Email").fill(mail)
    follow(page, page.get_by_role("button", name="Write the link to a file"))
    expect(page.get_by_role("heading", name="No email was sent")).to_be_visible()
    until(lambda: links_mailed_to(stack, mail))
    link = links_mailed_to(stack, mail)[0]
    page.goto(link)
    page.get_by_label("New password", exact=True).fill(new)
    page.get_by_label("New password (again)").fill(new)
    follow(page, page.get_by_role("button", name="Set password"))
    page.goto("/")
    sign_in(page, mail, new)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert link.partition("/key/")[2] not in stack.log("console")


def links_mailed_to(stack: Stack, mail: str) -> list[str]:
    """The links in emails to this address; without a mail server the console writes emails to
    private files."""
    mails = [file.read_text() for file in (stack.var / "mail").glob("*")]
    found = "".join(text for text in mails if f"To: {mail}" in text)
    return re.findall(r"(http://\S+/password/reset/key/\S+)\s", found)  # up to its end


def test_guessing_passwords_is_slowed_down(street: Street, owner: Page, customer: Customer) -> None:
    name = f"owner-of-{customer.slug}"
    guesser = street.person()
    guesser.goto("/")
    for _ in range(5):
        sign_in(guesser, name, "guess")
        expect(guesser.get_by_text("Wrong username, email or password.")).to_be_visible()
    sign_in(guesser, name)
    expect(guesser.get_by_text("Too many attempts. Try again in")).to_be_visible()
    expect(guesser.get_by_role("heading", name="Sign in")).to_be_visible()


def test_an_operator_is_asked_for_a_second_factor_until_there_is_one(
    street: Street, operator: Page, office: httpx.Client
) -> None:
    name = f"second-operator-{token_hex(3)}"
    page = street.person()
    slug = f"of-{name}"
    office.post("/api/v1/tenants", json={"slug": slug, "name": name}).raise_for_status()
    made = office.post("/api/v1/invitations", params={"tenant": slug}, json={"role": "viewer"})
    join(page, made.json()["url"], name)
    go(operator, "Users")
    operator.get_by_role("row", name=name).get_by_role("button", name="Make operator").click()
    dialog = operator.get_by_role("dialog", name=f"Make {name} an operator?")
    follow(operator, dialog.get_by_role("button", name="Make operator"))
    sign_out(page)
    page.goto("/operate/users")
    sign_in(page, name)
    expect(page.get_by_role("heading", name="Protect your account")).to_be_visible()
    follow(page, page.get_by_role("link", name="Not now"))
    expect(page.get_by_role("heading", name="Users")).to_be_visible()
    banner = page.get_by_text("You are signed in as an operator with a password only.")
    expect(banner).to_be_visible()
    follow(page, page.get_by_role("link", name="Set up a second factor"))
    page.get_by_label("Password").fill(PASSWORD)
    follow(page, page.get_by_role("button", name="Confirm"))
    enter_code(page, page.get_by_label("Setup key").input_value(), "Set up")
    expect(page.get_by_text("Authenticator app set up.")).to_be_visible()
    follow(page, page.get_by_role("link", name="Console"))
    expect(page.get_by_role("navigation", name="Installation")).to_be_visible()
    expect(banner).to_have_count(0)


def test_after_signing_out_the_back_button_shows_no_page(owner: Page, customer: Customer) -> None:
    go(owner, "Members")
    expect(owner.get_by_role("heading", name="Members")).to_be_visible()
    sign_out(owner)
    owner.go_back()
    expect(owner.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(owner.get_by_role("heading", name="Members")).to_have_count(0)
