"""Takes pictures of one page after another, in both themes, in each of SIZES."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from itertools import product
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Error, Page

from tests.browser.scenery import Scenery
from tests.browser.sweep import NARROW, WIDE
from tests.stack.running import Stack

SIZES = ((1440, 900), (WIDE, 720), (NARROW, 820))
"""Window sizes: a desktop, a small laptop, a phone. Pictures show the whole page, however long."""
LOOKS = tuple(product(SIZES, ("light", "dark")))
DOCS_HEIGHT = 820
"""Height of the window for the documentation's pictures, which show only what fits in it."""
QUALITY = 82
DRAWN = """() => document.fonts.ready.then(() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => done(null)))))"""
"""Charts and panes are redrawn in the frame after the window's size changed."""

Steps = Callable[[Page], None]


def nothing(page: Page) -> None:
    """Leave the page as it is loaded."""


@dataclass(frozen=True)
class Shot:
    """A page as a role sees it, after some steps."""

    name: str
    role: str
    url: str
    steps: Steps = nothing


class Camera:
    """A browser for each role, with one page."""

    def __init__(self, browser: Browser, stack: Stack, scenery: Scenery, out: Path) -> None:
        self._browser, self._stack, self._scenery, self._out = browser, stack, scenery, out
        self._contexts: dict[str, BrowserContext] = {}
        self.failed: list[str] = []
        """The shots whose steps failed, with the error."""

    def take(self, shot: Shot) -> None:
        """One picture for each of LOOKS: `<name>-<width>-<theme>.png`."""
        page = self._ready(shot)
        for (width, height), theme in LOOKS:
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            page.evaluate(DRAWN)
            file = self._out / f"{shot.name}-{width}-{theme}.png"
            page.screenshot(path=file, full_page=True, animations="disabled")
        page.close()

    def take_for_docs(self, shot: Shot) -> None:
        """One picture, `<name>.webp`: light, wide, as high as the window."""
        page = self._ready(shot)
        page.evaluate(DRAWN)
        asked = {"format": "webp", "quality": QUALITY}
        answer = page.context.new_cdp_session(page).send("Page.captureScreenshot", asked)
        (self._out / f"{shot.name}.webp").write_bytes(base64.b64decode(answer["data"]))
        page.close()

    def _ready(self, shot: Shot) -> Page:
        page = self._context(shot.role).new_page()
        page.set_viewport_size({"width": WIDE, "height": DOCS_HEIGHT})
        page.emulate_media(color_scheme="light")
        page.goto(shot.url)
        try:
            shot.steps(page)
        except (AssertionError, Error) as error:  # the picture shows the state reached
            self.failed.append(f"{shot.name}: {error}")
        return page

    def _context(self, role: str) -> BrowserContext:
        if role not in self._contexts:
            made = self._browser.new_context(
                base_url=self._stack.console_url, reduced_motion="reduce"
            )
            if cookie := self._scenery.sessions.get(role):
                value = {"name": "sessionid", "value": cookie, "url": self._stack.console_url}
                made.add_cookies([value])  # type: ignore[list-item]
            self._contexts[role] = made
        return self._contexts[role]


def sheet(out: Path, names: list[str]) -> None:
    """Write `index.html`, with all pictures, a line for each page."""
    lines = [
        f"<h2 id={escape(name)!r}>{escape(name)}</h2><p>{_pictures(name)}</p>" for name in names
    ]
    style = "img{vertical-align:top;margin:4px;border:1px solid #888}img.w390{height:420px}"
    page = f"<!doctype html><title>Lorikeet</title><style>{style}</style>{''.join(lines)}"
    (out / "index.html").write_text(page)


def _pictures(name: str) -> str:
    files = [(f"{name}-{width}-{theme}.png", width) for (width, _), theme in LOOKS]
    return "".join(
        f'<a href="{file}"><img class="w{width}" src="{file}" height="420" loading="lazy"></a>'
        for file, width in files
    )
