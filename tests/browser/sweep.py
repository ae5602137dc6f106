"""Checks one page after another in one browser: in both themes, at both widths, with its dialogs.

Findings of axe-core (from the wheel axe-playwright-python; MPL-2.0, for tests only), horizontal
overflow, and what the witness saw are noted as lines of text, each with its page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Error, Page

from tests.browser.people import PATIENCE_MS
from tests.browser.witness import Witness
from tests.stack.running import Stack

WIDE, NARROW = 1280, 390
"""Widths of the window, in CSS pixels."""
HEIGHT = 900
RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
LOOKS = (("light", WIDE), ("dark", NARROW))
"""The theme changes only colours, and the width everything except colours: so two looks suffice for
all four combinations. axe-core checks one page in the first of them, the next in the second."""
OF_SIDEBAR = ("dark", WIDE)
"""One more look at the first page, for the sidebar, which a narrow window hides."""

ASK_AXE = """async ([within, known, rules]) => {
  const asked = { runOnly: rules, resultTypes: ["violations"], preload: false };
  const { violations } = await axe.run({ include: [within], exclude: known }, asked);
  return violations.flatMap(({ id, nodes }) => nodes.map(({ target, html, failureSummary }) =>
    `${id}: ${target.join(" ")} ${html.slice(0, 160)} ${failureSummary}`.replace(/\\s+/g, " ")));
}"""
STANDING_OUT = """(within) => {
  const box = within === "html" ? document.documentElement : document.querySelector(within);
  if (box.scrollWidth <= box.clientWidth) return [];
  const edge = (one) => one.getBoundingClientRect().left + one.scrollWidth;
  const free = (one) => getComputedStyle(one).overflowX === "visible";
  const spills = (one) => free(one) && edge(one) > edge(box) - 1;
  const inmost = [...box.querySelectorAll("*")].filter(spills).at(-1);
  return [`${box.scrollWidth} px wide: ${inmost?.cloneNode(false).outerHTML}`];
}"""
CUT_OFF = """() => [...document.querySelectorAll(".table-wrap:not([hidden])")]
  .filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => `the table is ${one.scrollWidth} px wide, where ${one.clientWidth} px are seen`)"""
DIALOGS = """() => [...document.querySelectorAll("[data-opens]:enabled")]
  .map((one) => one.dataset.opens)
  .filter((id) => document.getElementById(id) instanceof HTMLDialogElement)"""
SIDEBAR = "#sidebar"
NOT_OURS = ".swagger-ui"
"""HTML of a library, in which axe-core finds much that cannot be fixed here."""


DRAWERS = {
    "requests": (".requests tbody th a", "#request"),
    "playground": ("[data-act=settings]", "#settings"),
}
"""What else opens, by the name of a page: what is clicked, and what then appears."""
READY = {"the API reference": "#swagger-ui .opblock"}
"""What a page's script creates, and without which there is little to check, by the page's name."""


@dataclass(frozen=True)
class Visit:
    """A page to check."""

    name: str
    url: str
    status: int = 200


@dataclass
class Sweep:
    """One user's browser."""

    role: str
    page: Page
    witness: Witness
    findings: dict[str, list[str]] = field(default_factory=dict)
    """Each problem with its place, and the looks in which it appears."""
    _opened_once: set[str] = field(default_factory=set)
    """The dialogs that were checked: several are on every page."""
    _count: int = 0
    _heard: int = 0

    @property
    def report(self) -> str:
        return "\n".join(f"{what} ({'; '.join(looks)})" for what, looks in self.findings.items())

    def look(self, visit: Visit) -> None:
        """Open the page, and note the problems of it and of each of its dialogs."""
        where = f"{visit.name} as {self.role}"
        try:
            answer = self.page.goto(visit.url)
            if answer is None or answer.status != visit.status:
                self._note(where, f"{answer and answer.status} {visit.url}")
            if visit.name in READY:
                self.page.locator(READY[visit.name]).first.wait_for()
            self._look(visit, where)
        except Error as error:  # such as a dialog that does not open
            self._note(where, str(error))
        self._listen(where, visit)

    def look_here(self, name: str) -> None:
        """The same for the page that is open, whose first look is restored afterwards."""
        self._look(Visit(name, self.page.url), f"{name} as {self.role}")
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size({"width": WIDE, "height": HEIGHT})

    def _look(self, visit: Visit, where: str) -> None:
        self.page.evaluate(AXE_SCRIPT)
        openers = list(self._openers(visit))
        checked = LOOKS[self._count % len(LOOKS)]
        for look in (*LOOKS, OF_SIDEBAR) if self._count == 0 else LOOKS:
            theme, width = look
            self.page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            self.page.set_viewport_size({"width": width, "height": HEIGHT})
            self._judge(where, look, "html", asked=look in (checked, OF_SIDEBAR))
            # The operator's pages also show what other tests created, with names of any length.
            if width == WIDE and not visit.url.startswith("/operate/"):
                for what in self.page.evaluate(CUT_OFF):
                    self._note(where, what, look)
            for opener, within in openers if look == checked else []:
                with self._opened(opener, within):
                    self._judge(f"{where}, {within}", look, within, asked=True)
        self._count += 1

    def _note(self, where: str, what: str, look: tuple[str, int] | None = None) -> None:
        seen = "at once" if look is None else f"{look[0]}, {look[1]} px"
        self.findings.setdefault(f"{where}: {what}", []).append(seen)

    def _judge(self, where: str, look: tuple[str, int], within: str, *, asked: bool) -> None:
        """Note what is too wide and, if `asked`, what axe-core finds; in the sidebar only once."""
        found = self.page.evaluate(STANDING_OUT, within)
        if asked:
            known = [NOT_OURS, *([SIDEBAR] if self._count else [])] if within == "html" else []
            found += self.page.evaluate(ASK_AXE, [within, known, RULES])
        for what in found:
            self._note(where, what, look)

    def _openers(self, visit: Visit) -> Iterator[tuple[str, str]]:
        """What to click, and what then appears. Of the dialogs of a table's rows, the first."""
        kinds = {re.sub(r"\d+$", "", id): id for id in reversed(self.page.evaluate(DIALOGS))}
        for kind in sorted(kinds.keys() - self._opened_once):
            yield f"[data-opens={kinds[kind]}]", f"#{kinds[kind]}"
        self._opened_once |= kinds.keys()
        if visit.name in DRAWERS and self.page.locator(DRAWERS[visit.name][0]).count():
            yield DRAWERS[visit.name]

    @contextmanager
    def _opened(self, opener: str, within: str) -> Iterator[None]:
        """Open by a click from a script, because the button may be in the menu that a narrow window
        hides; close at the end."""
        url = self.page.url
        click = self.page.locator(opener).first
        click.evaluate("one => one.click()")
        opened = self.page.locator(within).first
        opened.wait_for()
        if within == "#palette":
            self.page.keyboard.type("limits")
            self.page.locator("#palette-found [role=option]").first.wait_for()
        yield
        if opened.evaluate("one => one instanceof HTMLDialogElement"):
            self.page.keyboard.press("Escape")
        else:
            click.evaluate("one => one.click()")
        opened.wait_for(state="hidden")
        self.page.wait_for_url(url)  # a drawer has an address of its own

    def _listen(self, where: str, visit: Visit) -> None:
        """Note what the witness saw since the last time, except for the expected status."""
        strange = self.witness.strange[self._heard :]
        self._heard += len(strange)
        for what in strange:
            if not what.startswith(f"{visit.status} "):
                self._note(where, what)


@contextmanager
def sweeping(chromium: Browser, stack: Stack, role: str, cookie: str | None) -> Iterator[Sweep]:
    """A sweep in a new browser context, with this session's cookie or none."""
    context = chromium.new_context(base_url=stack.console_url, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    if cookie is not None:
        context.add_cookies([{"name": "sessionid", "value": cookie, "url": stack.console_url}])
    witness = Witness(stack.console_url)
    witness.watch(context)
    yield Sweep(role, context.new_page(), witness)
    context.close()
