"""What users do in the playground."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from demo import MODEL_NAME
from tests.browser.people import go

LONG = " ".join(f"word{number}" for number in range(150))
"""A prompt whose answer takes some seconds."""
ENDLESS = " ".join(f"word{number}" for number in range(650))
"""A prompt whose answer takes so long that it is stopped before its end."""


def pane(page: Page, number: int = 1) -> Locator:
    return page.get_by_role("group", name=f"Pane {number}")


def log(page: Page) -> Locator:
    """The messages of the first pane."""
    return pane(page).get_by_role("log")


def settings(page: Page) -> Locator:
    """The drawer with the settings of a pane."""
    return page.get_by_role("dialog", name="Settings")


def be_exact(pane: Locator) -> None:
    """Set temperature 0, so that the pane's answers are always the same."""
    pane.get_by_role("button", name="Settings").click()
    drawer = settings(pane.page)
    drawer.get_by_label("Temperature").fill("0")
    drawer.get_by_role("button", name="Close settings").click()


def open_playground(page: Page) -> None:
    """Open the playground with one pane at temperature 0, and wait until it is connected."""
    go(page, "Playground")
    expect(page.get_by_role("status").get_by_text("Live")).to_be_visible()
    be_exact(pane(page))


def ask(page: Page, text: str) -> None:
    """Send a message to all panes."""
    message = page.get_by_label("Message")
    message.fill(text)
    message.press("Control+Enter")


def answer_to(text: str) -> str:
    """The synthetic engine's answer, which repeats the question."""
    return f"{MODEL_NAME}: {text}"


def output(pane: Locator) -> Locator:
    """The pane's last answer."""
    return pane.get_by_role("log").locator(".output").last


def feet(pane: Locator) -> Locator:
    """The time and cost below each of the pane's answers that have ended."""
    return pane.get_by_role("log").locator(".foot")


def foot(pane: Locator) -> Locator:
    """The time and cost below the pane's last answer."""
    return feet(pane).last
