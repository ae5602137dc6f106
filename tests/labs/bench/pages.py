"""How long the console's pages take with a lot of data."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median, quantiles

import httpx
from allauth.account.authentication import AUTHENTICATION_METHODS_SESSION_KEY
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from playwright.async_api import Browser, async_playwright

from demo.crowd import Size
from demo.management.commands.make_crowd import make
from tenants.models import Role, Tenant, User
from tests.browser import executable
from tests.frontend.addresses import Page, pages
from tests.labs.bench.machinery.processes import Failed, cpu_of, postgres_cpu_s
from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.machinery.servers import ENGINE_OPTIONS
from tests.labs.bench.sides import lorikeet
from tests.labs.bench.sides.lorikeet import Gateway

P95_MS = 100
MAX_QUERIES = 12
PAINT_MS = 1_000
FIRST_PAGE_KB = 150
BIG = "crowd-0000"
"""The tenant whose pages are measured: it has the most of everything."""
AUDIT_ENTRIES = 300_000
REQUESTS = 20
"""Requests of each page in a round, over which the page's p95 is taken."""
VARIANTS: Mapping[str, Sequence[str]] = {
    "overview": ("?period=1h", "?period=30d"),
    "operate": ("?period=1h", "?period=30d"),
    "requests": (
        "?outcome=wrong&period=30d",
        "?outcome=failed&period=30d",
        "?outcome=refused&period=30d",
        "?q=support-0040&period=30d",
        "?q=Rate+limit&period=30d",
        "?ttft=0.3&period=30d",
        "?total=30&period=30d",
    ),
    "usage": ("?period=30d&by=key&show=cost", "?period=month", "?period=custom&first={year_ago}"),
    "adapters": ("?q=support", "?state=rejected", "?after=search-0900"),
    "keys": ("?q=billing",),
    "limits": ("?q=support",),
    "audit": ("?kind=key&action=deleted", "?actor=member-77", "?since={year_ago}"),
    "operate_tenants": ("?sort=-cost", "?q=harbour&sort=name", "?after=crowd-0500"),
    "operate_audit": ("?tenant=crowd-0500", "?actor=member-77", "?kind=alias&action=deleted"),
    "operate_prices": ("?state=all",),
    "operate_usage": (
        "?period=30d&by=base_model",
        "?period=month",
        "?period=custom&first={year_ago}",
    ),
    "operate_requests": (
        "?period=30d",
        "?outcome=wrong&period=30d",
        "?q=support-0040&period=30d",
        "?ttft=0.3&period=30d",
        "?tenant=crowd-0500&period=30d",
        "?tenant=crowd-0000&outcome=wrong&period=30d",
        "?tenant=crowd-0000&q=support-0040&period=30d",
        "?tenant=crowd-0000&ttft=0.3&period=30d",
    ),
    "notifications": ("?before=1000",),
    "operate_notifications": ("?before=1000",),
}
"""Filters and distant pages of lists, which may use other query plans."""
PAINTED = ("account_login", "overview", "playground", "adapters", "usage", "operate")


@dataclass(slots=True)
class Look:
    """One page as one role sees it: milliseconds of each request by round, and CPU milliseconds of
    a request by round, of console and PostgreSQL together."""

    page: Page
    queries: int
    rounds: list[list[float]] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The page's name with its query string."""
        return self.page.name + "".join(self.page.url.partition("?")[1:])

    def row(self) -> Row:
        said = f"{self.title} ({self.page.role}): {self.queries} queries, p50 {self.p50:.0f} ms"
        said += f", CPU {median(self.cpu_ms):.0f} ms"
        return Row(f"{said}, p95", self.p95, "ms", at_most=P95_MS)

    @property
    def p95(self) -> Figure:
        return Figure.of([quantiles(took, n=20, method="inclusive")[-1] for took in self.rounds])

    @property
    def p50(self) -> float:
        return median(one for took in self.rounds for one in took)


async def run(scale: Scale) -> Report:
    """Request every page from a console process as every role, one request at a time.

    Raises:
        Failed: a page does not answer as it should.
    """
    looks, sessions = await sync_to_async(_prepare)(scale)
    async with (
        lorikeet.gateway() as gateway,
        lorikeet.engine(gateway, "engine", *ENGINE_OPTIONS),
        lorikeet.console() as console,
    ):
        for number in range(scale.page_rounds + 1):
            for look in looks:
                used_s = _used_s(console)
                took = await _ask(console, look.page, sessions)
                if number:  # the first reads from disk
                    look.rounds.append(took)
                    look.cpu_ms.append(1000 * (_used_s(console) - used_s) / REQUESTS)
        painted = await _paint(console.url, looks, sessions, scale.page_rounds)
    return Report(
        "The console's pages",
        [*slowest(looks), *painted],
        f"Each page as the role for which it is slowest; {REQUESTS} requests a round on one "
        f"connection, from the request to the last byte. {len(looks)} pages of roles in all; "
        f"load average {os.getloadavg()[1]:.1f}.",
    )


def slowest(looks: Iterable[Look]) -> list[Row]:
    """One row per page, the slowest first; the last row is the page with the most queries."""
    slowest: dict[str, Look] = {}
    for look in sorted(looks, key=lambda look: look.p95.median):
        slowest.pop(look.title, None)
        slowest[look.title] = look
    rows = [look.row() for look in reversed(slowest.values())]
    most = max(looks, key=lambda look: look.queries)
    figure = Figure.of([most.queries])
    return [*rows, Row(f"most queries: {most.title}", figure, at_most=MAX_QUERIES)]


def _used_s(console: Gateway) -> float:
    """CPU seconds of console and PostgreSQL so far; other work distorts them less than times."""
    return cpu_of(console.child)() + postgres_cpu_s()


async def _ask(console: Gateway, page: Page, sessions: Mapping[str, str]) -> list[float]:
    """Request a page for one round; returns milliseconds of each request."""
    took = []
    async with httpx.AsyncClient(
        base_url=console.url, cookies=cookies_of(page, sessions), trust_env=False, timeout=60
    ) as client:
        for _ in range(REQUESTS):
            began = time.perf_counter()
            answer = await client.get(page.url)
            took.append(1000 * (time.perf_counter() - began))
            if answer.status_code != 200:
                log = console.child.last_lines()
                raise Failed(f"{page} answered {answer.status_code}; the log says:\n{log}")
    return took


def cookies_of(page: Page, sessions: Mapping[str, str]) -> dict[str, str]:
    return {"sessionid": sessions[page.role]} if page.role in sessions else {}


# --- Pages and clients ---------------------------------------------------------------------------


def _prepare(scale: Scale) -> tuple[list[Look], dict[str, str]]:
    """Prepare with `crowded`; returns the pages with their query counts, and session cookies."""
    tenant, clients = crowded(scale)
    looks = [
        Look(page, _queries(clients.get(page.role) or _client(), page)) for page in asked(tenant)
    ]
    return looks, sessions_of(clients)


def crowded(scale: Scale) -> tuple[Tenant, dict[str, Client]]:
    """Generate a crowd and static files; returns the measured tenant, and a client per role."""
    call_command("collectstatic", verbosity=0, interactive=False)
    if not Tenant.objects.filter(slug=BIG).exists():
        until = timezone.now().replace(minute=0, second=0, microsecond=0)
        make(Size(scale.page_tenants, scale.page_adapters, scale.events, AUDIT_ENTRIES, until))
    tenant = Tenant.objects.get(slug=BIG)
    return tenant, _clients(tenant)


def sessions_of(clients: Mapping[str, Client]) -> dict[str, str]:
    """The session cookie of each role."""
    return {role: client.cookies["sessionid"].value for role, client in clients.items()}


def asked(tenant: Tenant) -> Iterator[Page]:
    year_ago = f"{timezone.now() - timedelta(days=364):%Y-%m-%d}"
    for page in pages(tenant):
        yield page
        for query in VARIANTS.get(page.name, ()):
            yield Page(page.name, page.url + query.format(year_ago=year_ago), page.role)


def _clients(tenant: Tenant) -> dict[str, Client]:
    """Signed-in clients: a member of each role, and an operator after the second factor."""
    found = {role.value: _member(tenant, role) for role in Role}
    found["operator"], _ = User.objects.get_or_create(username="bench-operator", is_staff=True)
    clients = {role: _client() for role in found}
    for role, user in found.items():
        user.set_password("only for the pages of the account")
        user.save()
        clients[role].force_login(user)
    session = clients["operator"].session
    session[AUTHENTICATION_METHODS_SESSION_KEY] = [{"method": "mfa", "type": "totp", "at": 0}]
    session.save()
    return clients


def _member(tenant: Tenant, role: Role) -> User:
    return User.objects.filter(memberships__tenant=tenant, memberships__role=role)[0]


def _client() -> Client:
    return Client(SERVER_NAME="localhost")


def _queries(client: Client, page: Page) -> int:
    """The page's database queries on a repeated visit."""
    client.get(page.url)
    with CaptureQueriesContext(connection) as queries:
        client.get(page.url)
    return len(queries)


# --- In a browser --------------------------------------------------------------------------------


async def _paint(
    base_url: str, looks: Iterable[Look], sessions: Mapping[str, str], rounds: int
) -> list[Row]:
    """First contentful paint and bytes on the wire of the main pages, with an empty cache."""
    path = executable.chromium()
    if path is None:
        return []
    wanted = {look.page.name: look.page for look in looks if "?" not in look.page.url}
    rows = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        for name in PAINTED:
            seen = [
                await _visit(browser, base_url, wanted[name], sessions) for _ in range(rounds + 1)
            ]
            paint, sent = zip(*seen[1:], strict=True)
            rows.append(
                Row(f"{name}, first contentful paint", Figure.of(paint), "ms", at_most=PAINT_MS)
            )
            rows.append(Row(f"{name}, everything", Figure.of(sent), "KB", at_most=FIRST_PAGE_KB))
        await browser.close()
    return rows


async def _visit(
    browser: Browser, base_url: str, page: Page, sessions: Mapping[str, str]
) -> tuple[float, float]:
    """The first contentful paint in milliseconds, and the kilobytes of all bodies as sent."""
    context = await browser.new_context()
    cookies = cookies_of(page, sessions).items()
    await context.add_cookies([{"name": n, "value": v, "url": base_url} for n, v in cookies])
    tab = await context.new_page()
    await tab.goto(base_url + page.url, wait_until="networkidle")
    paint = await tab.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    )
    sent = await tab.evaluate(
        "performance.getEntries().reduce((sum, one) => sum + (one.encodedBodySize ?? 0), 0)"
    )
    await context.close()
    return paint, sent / 1000
