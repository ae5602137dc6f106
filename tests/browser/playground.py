"""What people do in the playground."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

from demo import MODEL_NAME

LONG = " ".join(f"word{number}" for number in range(150))
"""Its answer takes some seconds."""
ENDLESS = " ".join(f"word{number}" for number in range(650))
"""Its answer takes so long that it is stopped before its end."""


def pane(page: Page, number: int = 1) -> Locator:
    return page.get_by_role("group", name=f"Pane {number}")


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
