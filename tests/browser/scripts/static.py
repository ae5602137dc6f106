"""Serves the console's scripts from the repository, for tests in which no Lorikeet runs."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Route

from frontend import apps

FILES = Path(apps.__file__).parent / "static"


def serve(route: Route, home: str, html: str) -> None:
    """Answer with the page `html` at `home`, or with the static file of the path below it."""
    name = route.request.url.removeprefix(home)
    if name:
        route.fulfill(path=FILES / name)
    else:
        route.fulfill(body=html, content_type="text/html")
