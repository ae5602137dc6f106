"""What people do in the playground."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from demo import MODEL_NAME
from tests.browser.people import go

LONG = " ".join(f"word{number}" for number in range(150))
"""Its answer takes some seconds."""
ENDLESS = " ".join(f"word{number}" for number in range(650))
"""Its answer takes so long that it is stopped before its end."""


def pane(page: Page, number: int = 1) -> Locator:
    return page.get_by_role("group", name=f"Pane {number}")


def log(page: Page) -> Locator:
    """What was said in the first pane."""
    return pane(page).get_by_role("log")


def be_exact(pane: Locator) -> None:
    """Its answers are the same whenever they are asked for."""
    pane.get_by_role("button", name="Settings").click()
    pane.get_by_label("Temperature").fill("0")


def open_playground(page: Page) -> None:
    """With one exact pane, once it is connected."""
    go(page, "Playground")
    expect(page.get_by_role("status").get_by_text("Live")).to_be_visible()
    be_exact(pane(page))


def ask(page: Page, text: str) -> None:
    """In all panes."""
    message = page.get_by_label("Message")
    message.fill(text)
    message.press("Control+Enter")


def answer_to(text: str) -> str:
    """What the synthetic engine says to it: it repeats what it is asked."""
    return f"{MODEL_NAME}: {text}"


def said(pane: Locator) -> Locator:
    """Its last answer."""
    return pane.get_by_role("log").locator(".said").last


def feet(pane: Locator) -> Locator:
    """What each of its answers took and cost; there once one has ended."""
    return pane.get_by_role("log").locator(".foot")


def foot(pane: Locator) -> Locator:
    """That of its last answer."""
    return feet(pane).last
