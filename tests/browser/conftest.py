"""One Lorikeet with the synthetic engine and one Chromium for all journeys.

What pages show of a real engine is tested in `tests/stack/test_pages.py`.

Both live only as long as this folder's tests: Playwright keeps an event loop running, which would
break tests elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser import executable
from tests.browser.people import PATIENCE_MS, Customer, Street, follow, session_of_new, sign_in
from tests.frontend.sign_in.identity_provider import CALLBACK, CLIENT, IdentityProvider, serving
from tests.stack.furnished import SETTINGS, furnished
from tests.stack.running import Stack, signed_in, up

ENGINE = "--engine synthetic --tokens-per-second 60 --drain 1"


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    path = executable.chromium()
    if path is None:
        pytest.skip("needs Chromium, which `.ci/run` installs")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def provider() -> Iterator[IdentityProvider]:
    """The provider of single sign-on; on another site than the console, as providers are."""
    with serving("localhost") as server:
        server.asks = True
        yield server


@pytest.fixture(scope="package")
def stack(
    chromium: Browser, provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """The running Lorikeet. It starts after Chromium: nothing starts if the tests are skipped."""
    settings = SETTINGS | {"LORIKEET_ENGINE_OPTIONS": ENGINE, "LORIKEET_WEBHOOKS_PRIVATE": "1"}
    # On a busy machine a killed gateway takes long to start again.
    settings |= {"LORIKEET_WITHOUT_GATEWAY_S": "600"}
    settings |= {"LORIKEET_OIDC_ISSUER": provider.issuer, "LORIKEET_OIDC_NAME": "Parrot ID"}
    settings |= dict(
        zip(("LORIKEET_OIDC_CLIENT_ID", "LORIKEET_OIDC_CLIENT_SECRET"), CLIENT, strict=True)
    )
    with up(furnished(tmp_path_factory.mktemp("browser") / "var"), **settings) as running:
        provider.redirect_uri = running.console_url + CALLBACK
        yield running


@pytest.fixture(scope="package")
def office(stack: Stack) -> Iterator[httpx.Client]:
    """A client of the operator, which prepares what a journey needs at its start."""
    with signed_in(stack) as client:
        yield client


@pytest.fixture
def street(stack: Stack, chromium: Browser) -> Iterator[Street]:
    """Opens browsers for the test's users; asserts at the end that nothing unexpected happened."""
    street = Street(stack, chromium)
    yield street
    street.leave()
    assert street.witness.strange == []


@pytest.fixture
def customer(stack: Stack, office: httpx.Client) -> Customer:
    number = token_hex(4)
    body = {"slug": f"customer-{number}", "name": f"Customer {number}"}
    made = office.post("/api/v1/tenants", json=body)
    assert made.status_code == 201, made.text
    return Customer(stack, body["slug"], body["name"], office)


@pytest.fixture
def owner(street: Street, customer: Customer) -> Page:
    """The page of the customer's owner, at the tenant's overview."""
    page = street.person()
    cookies = session_of_new(customer, "owner", f"owner-of-{customer.slug}")
    page.context.add_cookies(
        [
            {"name": name, "value": value, "url": street.stack.console_url}
            for name, value in cookies.items()
        ]
    )
    page.goto(customer.page())
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    return page


@pytest.fixture
def operator(street: Street) -> Page:
    """The page of the operator, signed in."""
    page = street.person()
    login = street.stack.facts["operator"]
    page.goto("/")
    sign_in(page, login["username"], login["password"])
    follow(page, page.get_by_role("link", name="Not now"))
    expect(page.get_by_role("navigation", name="Installation")).to_be_visible()
    return page
