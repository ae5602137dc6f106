"""Notes what must never happen in a browser, whatever is tested."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, ConsoleMessage, Request, Response, WebError

REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} forbids ${event.blockedURI} ${event.sample}`));
"""


class Witness:
    """Notes errors of pages and consoles, violations of the content security policy, requests to
    other origins, and failed requests.

    Everything counts as strange, including statuses of 4xx; a journey that expects one allows it by
    a part of its text, such as `422 `.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._seen: list[str] = []
        self._allowed: list[str] = []

    @property
    def strange(self) -> list[str]:
        return [one for one in self._seen if not any(part in one for part in self._allowed)]

    def allow(self, *parts: str) -> None:
        self._allowed += parts

    def watch(self, context: BrowserContext) -> None:
        """Listen to all pages of a context, from before their first request."""
        context.add_init_script(REPORT_VIOLATIONS)
        context.on("weberror", self._failed)
        context.on("console", self._said)
        context.on("request", self._asked)
        context.on("requestfailed", self._unanswered)
        context.on("response", self._answered)

    def _failed(self, error: WebError) -> None:
        self._seen.append(f"page error: {error.error}")

    def _said(self, message: ConsoleMessage) -> None:
        # A resource that failed to load is also noted with its response and address.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self._seen.append(f"console: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self._origin}/", "data:", "blob:")):
            self._seen.append(f"request elsewhere: {request.url}")

    def _unanswered(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left
            self._seen.append(f"{request.failure} {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self._seen.append(f"{response.status} {response.url}")
