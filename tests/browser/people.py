"""What users do in every journey, such as sign in and join; and the customer that they work for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from random import randrange

import httpx
from openai import OpenAI
from openai import Stream as OpenStream
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.adapters import files
from tests.browser.witness import Witness
from tests.stack.asking import QUESTION
from tests.stack.running import Stack

PATIENCE_MS = 90_000
"""Timeout of every expectation and action, long enough for a busy machine."""
PASSWORD = "correct horse battery staple"
TEXTS = """one => {
  const texts = [];
  new MutationObserver(() => texts.push(one.textContent)).observe(one, { childList: true });
  return texts;
}"""
"""Collects all texts that an element has from now on."""


class Street:
    """Opens a browser context for each user, all watched by one witness."""

    def __init__(self, stack: Stack, chromium: Browser) -> None:
        self.stack = stack
        self.witness = Witness(stack.console_url)
        self._chromium = chromium
        self._open: list[Page] = []

    def person(self, *, width: int = 1280, height: int = 800, dark: bool = False) -> Page:
        """A page in a new context without cookies."""
        context = self._chromium.new_context(
            base_url=self.stack.console_url,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            permissions=["clipboard-read", "clipboard-write"],
        )
        context.set_default_timeout(PATIENCE_MS)
        self.witness.watch(context)
        page = context.new_page()
        self._open.append(page)
        return page

    def leave(self) -> None:
        for page in self._open:
            page.context.close()


@dataclass(frozen=True)
class Customer:
    """A tenant for one journey, and what the operator and the tenant's programs do for it."""

    stack: Stack
    slug: str
    name: str
    office: httpx.Client = field(repr=False)

    def page(self, name: str = "") -> str:
        return f"/t/{self.slug}/{name}"

    def key(self, *scopes: str) -> str:
        """The text of a new key."""
        body = {"name": "made by the operator", "scopes": scopes or ["inference"]}
        made = self.office.post("/api/v1/keys", params={"tenant": self.slug}, json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["secret"])

    def invite(self, role: str) -> str:
        """The address of a new invitation."""
        made = self.office.post(self.page("members"), data={"role": role})
        found = re.search(r'id="invitation-link">([^<]+)<', made.text)
        assert found, made.text
        return unescape(found[1])

    def program(self, key: str) -> OpenAI:
        """The SDK's client in a program of the customer's."""
        return OpenAI(base_url=f"{self.stack.url}/v1", api_key=key, max_retries=0)


def sign_in(page: Page, name: str, password: str = PASSWORD) -> None:
    """Submit the sign-in page, which is open."""
    page.get_by_label("Username or email").fill(name)
    page.get_by_label("Password").fill(password)
    follow(page, page.get_by_role("button", name="Sign in"))


def join(page: Page, link: str, name: str, mail: str = "") -> None:
    """Follow an invitation, create an account, and join."""
    page.goto(link)
    page.get_by_role("link", name="Create account").click()
    page.get_by_label("Username").fill(name)
    page.get_by_label("Email").fill(mail)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Password (again)").fill(PASSWORD)
    page.get_by_role("button", name="Sign up").click()
    follow(page, page.get_by_role("button", name=f"Join as {name}"))


def session_of_new(customer: Customer, role: str, name: str) -> dict[str, str]:
    """As `join`, without a browser. Returns the cookies of the user who has joined.

    Users come from random addresses, because account creations per minute and address are limited.
    """
    here = httpx.HTTPTransport(
        local_address=f"127.{randrange(1, 255)}.{randrange(256)}.{randrange(1, 255)}"
    )
    with httpx.Client(
        base_url=customer.stack.console_url,
        transport=here,
        follow_redirects=True,
        timeout=PATIENCE_MS / 1000,
    ) as client:
        client.get(customer.invite(role))
        account = {"username": name, "password1": PASSWORD, "password2": PASSWORD}
        for address, form in (("/account/signup/?next=/join", account), ("/join", {})):
            client.get(address)
            page = client.post(
                address, data=form | {"csrfmiddlewaretoken": client.cookies["csrftoken"]}
            )
        assert page.url.path == customer.page(), page.text
        return dict(client.cookies)


def go(page: Page, title: str) -> None:
    """Follow a link of the sidebar."""
    follow(page, page.get_by_role("complementary").get_by_role("link", name=title, exact=True))


def follow(page: Page, link: Locator) -> None:
    """Click what leads to another page, and wait until that page's scripts have run."""
    expect(link).to_be_visible()
    page.wait_for_load_state("domcontentloaded")  # else this page's event is mistaken
    with page.expect_event("domcontentloaded"):
        link.click()


@contextmanager
def staying(page: Page) -> Iterator[None]:
    """Assert that the page is not reloaded meanwhile, so what changes on it changes by itself."""
    page.evaluate("document.body.dataset.loaded = 'once'")
    yield
    assert page.evaluate("document.body.dataset.loaded") == "once"


def open_account(page: Page) -> None:
    """Open the account's menu, at the foot of the sidebar."""
    page.get_by_role("complementary").locator("details.account summary").click()


def live_state(page: Page) -> Locator:
    """The sidebar's status of the page's socket."""
    return page.get_by_role("complementary").get_by_role("status").first


def copied(page: Page, panel: Locator, press: Callable[[Locator], None] = Locator.click) -> str:
    """Press a panel's button to copy. Returns the clipboard's text."""
    button = panel.get_by_role("button", name="Copy").first
    texts = button.evaluate_handle(TEXTS)  # it is shown for a moment only
    press(button)
    page.wait_for_function("texts => texts.includes('Copied')", arg=texts)
    return str(page.evaluate("navigator.clipboard.readText()"))


def invite(page: Page, role: str, note: str = "") -> str:
    """On the page of members: create an invitation. Returns its link."""
    page.get_by_role("button", name="Invite member").first.click()
    dialog = page.get_by_role("dialog", name="Invite member")
    dialog.get_by_role("radio", name=role.capitalize()).check()
    dialog.get_by_label("For").fill(note)
    follow(page, dialog.get_by_role("button", name="Create link"))
    return copied(page, page.get_by_role("region", name="Your invitation"))


def upload(page: Page, name: str, folder: Path) -> None:
    """On the page of adapters: upload a folder's files under this name."""
    follow(page, chosen(page, name, folder).get_by_role("button", name="Upload"))


def chosen(page: Page, name: str, folder: Path) -> Locator:
    """The upload dialog with the folder's files, before any is sent."""
    page.get_by_role("button", name="Upload adapter").first.click()
    dialog = page.get_by_role("dialog", name="Upload adapter")
    dialog.get_by_label("Name", exact=True).fill(name)
    dialog.get_by_label("Files", exact=True).set_input_files(files(folder))
    return dialog


def await_ready(page: Page) -> None:
    """On the page of a version: wait until its checks have passed."""
    expect(page.locator(".page-head .pill").filter(has_text="Ready")).to_be_visible()


def await_rejected(page: Page, name: str, reason: str) -> None:
    """On the page of a version: wait until it is rejected for this reason, here and in the list."""
    expect(page.get_by_text("Rejected", exact=True)).to_be_visible()
    findings = page.get_by_role("region", name="Why it was rejected").first
    expect(findings).to_contain_text(reason)
    go(page, "Adapters")
    expect(page.get_by_role("row", name=name)).to_contain_text("Rejected")


def create_key(page: Page, name: str) -> str:
    """On the page of API keys: create one that calls models. Returns its text, shown only once."""
    page.get_by_role("button", name="Create key").first.click()
    dialog = page.get_by_role("dialog", name="Create key")
    dialog.get_by_label("Name").fill(name)
    follow(page, dialog.get_by_role("button", name="Create"))
    return copied(page, page.get_by_role("region", name="Your new key"))


def completion(program: OpenAI, model: str, max_tokens: int) -> ChatCompletion:
    """A whole answer, the same each time (temperature 0)."""
    return program.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=max_tokens,
    )


def long_stream(
    program: OpenAI, model: str, max_tokens: int = 3900
) -> OpenStream[ChatCompletionChunk]:
    """The stream of an answer of exactly `max_tokens`. The default fills the demo's context, so
    that the stream still runs when a slow browser comes to end it."""
    return program.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        stream=True,
        temperature=0,
        max_tokens=max_tokens,
        extra_body={"ignore_eos": True},
    )
