"""Static files as a browser gets them: few, compressed, and cached for ever."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from servestatic import ServeStaticASGI

from tenants.models import Tenant
from tests.frontend.addresses import Page, pages
from tests.frontend.clients import client_of
from tests.tenants.making import make_adapter, make_key, make_version

MAX_BYTES = 150_000
"""Bound on a page with an empty cache: its HTML and all files that it loads."""
LOADED = {
    ".html": re.compile(r'(?:href|src)="(/static/[^"#]+)"'),
    ".css": re.compile(r'url\("?([^")]+)"?\)'),
    ".js": re.compile(r'(?:from|import)\s*"(\.[^"]+)"'),
}
"""How files of each kind load others."""
HASHED = re.compile(r"\.[0-9a-f]{12}\.\w+$")
NOT_OF_THE_CONSOLE = ["drf_spectacular_sidecar"]
FOR_EVER = "max-age=315360000, public, immutable"


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("collected")


@pytest.fixture(autouse=True)
def hashed_files(plain_files: None, settings: Any, collected: Path) -> None:
    """Static files collected and named as `up` does."""
    hashed = {"BACKEND": "gateway.storage.HashedStaticFiles"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": hashed}
    settings.STATIC_ROOT = str(collected)
    if not any(collected.iterdir()):
        call_command(
            "collectstatic", verbosity=0, interactive=False, ignore_patterns=NOT_OF_THE_CONSOLE
        )


class Browser:
    """Fetches a page's files as the gateway sends them, each once."""

    def __init__(self, root: Path) -> None:
        app = ServeStaticASGI(None, root=str(root), prefix="static")
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://gateway"
        )
        self._files: dict[str, httpx.Response] = {}

    async def load(self, html: str) -> dict[str, httpx.Response]:
        """All files that the page needs, by address."""
        found: dict[str, httpx.Response] = {}
        left = [*LOADED[".html"].findall(html)]
        while left:
            address = left.pop()
            if address not in found:
                found[address] = await self._get(address)
                left += _loads(address, found[address].text)
        return found

    async def _get(self, address: str) -> httpx.Response:
        if address not in self._files:
            self._files[address] = await self._client.get(address)
        return self._files[address]


def _loads(address: str, text: str) -> Iterator[str]:
    form = LOADED.get(posixpath.splitext(address)[1])
    for relative in form.findall(text) if form else []:
        yield posixpath.normpath(posixpath.join(posixpath.dirname(address), relative))


@pytest.fixture
def browser(collected: Path) -> Browser:
    return Browser(collected)


@pytest.fixture
def looks(tenant: Tenant) -> list[tuple[Page, str]]:
    """Every page with its HTML, once."""
    make_version(make_adapter(tenant))
    make_key(tenant)
    clients = {role: client_of(tenant, role) for role in ("nobody", "operator", "viewer")}
    found = {page.name: page for page in pages(tenant) if page.role in clients}
    return [(page, clients[page.role].get(page.url).content.decode()) for page in found.values()]


async def test_no_page_weighs_more_than_the_first_may(
    looks: list[tuple[Page, str]], browser: Browser
) -> None:
    assert {"account_login", "overview", "playground"} <= {page.name for page, _ in looks}
    for page, html in looks:
        files = await browser.load(html)
        sent = {address: sent_bytes(answer) for address, answer in files.items()}
        assert len(html.encode()) + sum(sent.values()) < MAX_BYTES, (page, sent)


async def test_everything_is_there_for_ever_and_compressed(
    looks: list[tuple[Page, str]], browser: Browser
) -> None:
    seen = 0
    for page, html in looks:
        for address, answer in (await browser.load(html)).items():
            seen += 1
            assert answer.status_code == 200, f"{page.name} loads {address}"
            assert HASHED.search(address), f"{page.name} loads {address} by a name that stays"
            assert answer.headers["cache-control"] == FOR_EVER
            if sent_bytes(answer) > 1_000 and not address.endswith((".woff2", ".webp")):
                assert answer.headers["content-encoding"] == "gzip", address
    assert seen > len(looks)


async def test_modules_import_each_other_by_names_that_change(
    looks: list[tuple[Page, str]], browser: Browser
) -> None:
    html = next(html for page, html in looks if page.name == "playground")
    names = {HASHED.sub("", address) for address in await browser.load(html)}
    assert {"/static/js/playground/markdown", "/static/vendor/highlight/core"} <= names


def test_what_no_page_loads_is_not_collected() -> None:
    """The package has two viewers of the API's document; only Swagger is used."""
    found = {path for finder in get_finders() for path, _ in finder.list([])}
    assert "drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js" in found
    assert "js/live.js" in found
    assert not [path for path in found if {"redoc", "rest_framework"} & {*path.split("/")}]


def sent_bytes(answer: httpx.Response) -> int:
    """The body's length, as sent."""
    return int(answer.headers["content-length"])
