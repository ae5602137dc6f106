"""Every page of the console once, in both themes, on a desktop and on a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.scenery import Scenery
from tests.browser.sweep import Visit, sweeping
from tests.frontend.addresses import Subject, pages_of
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

ROLES = ("owner", "operator", "viewer", "nobody")
"""Each page is opened as the first of these that may; tests/frontend/every_page opens it as all."""
WITHOUT_TOKEN = """() => {
  const form = document.querySelector("main form[method=post]");
  form.querySelector("[name=csrfmiddlewaretoken]").remove();
  form.submit();
}"""
"""Submits a form without its CSRF token, as another site would."""


@pytest.mark.parametrize("role", ROLES)
def test_pages_are_sound(role: str, stack: Stack, chromium: Browser, scenery: Scenery) -> None:
    with sweeping(chromium, stack, role, scenery.sessions.get(role)) as sweep:
        for visit in visits(scenery, role):
            sweep.look(visit)
    if sweep.findings:
        pytest.fail(sweep.report, pytrace=False)


def test_the_page_of_a_form_that_expired_is_sound(stack: Stack, chromium: Browser) -> None:
    with sweeping(chromium, stack, "nobody", None) as sweep:
        sweep.page.goto("/account/login/")
        sweep.page.evaluate(WITHOUT_TOKEN)
        expect(sweep.page.get_by_role("heading", name="Form expired")).to_be_visible()
        sweep.look_here("a form that expired")
    assert sweep.findings == {}


def visits(scenery: Scenery, role: str) -> Iterator[Visit]:
    """The pages that this role opens, and the answers to some that it may not."""
    pages = pages_of(Subject(**scenery.subject))
    openers: dict[str, set[str]] = {}
    for page in pages:
        openers.setdefault(page.name, set()).add(page.role)
    for page in pages:
        if page.role == role == next(one for one in ROLES if one in openers[page.name]):
            yield Visit(page.name, page.url)
    yield from SPECIAL.get(role, lambda scenery: [])(scenery)


def _of_owner(scenery: Scenery) -> list[Visit]:
    """An empty tenant, a rejected version, a list without matches, and similar states."""
    full, empty = f"/t/{scenery.slug}", f"/t/{scenery.empty}"
    pages = pages_of(Subject(scenery.empty))
    return [
        *(Visit(f"{page.name}, empty", page.url) for page in pages if page.role == "owner"),
        Visit("a choice of tenants", "/"),
        Visit("a rejected version", f"{full}/adapters/size-advisor/versions/2"),
        Visit("a difference", f"{full}/adapters/support/versions/2/diff?with=1"),
        Visit("no match", f"{full}/keys?q=nothing-is-called-so"),
        Visit("usage by key", f"{full}/usage?period=24h&by=key&show=cost"),
        Visit("not found", f"{empty}/adapters/nothing/", status=404),
    ]


def _of_viewer(scenery: Scenery) -> list[Visit]:
    return [
        Visit("not allowed", f"/t/{scenery.slug}/audit", status=403),
        Visit("not found", "/operate/", status=404),
        Visit("the API reference", "/api/v1/docs/"),
    ]


def _of_nobody(scenery: Scenery) -> list[Visit]:
    return [
        Visit("an invitation", f"/invitations/{scenery.invitation}"),
        Visit("an account", "/account/signup/?next=/join"),
        Visit("an invitation that is over", "/invitations/nonsense", status=404),
        Visit("no account without one", "/account/signup/"),
        Visit("a request that cannot be read", f"/account/login/?{'a&' * 1001}", status=400),
    ]


SPECIAL = {"owner": _of_owner, "viewer": _of_viewer, "nobody": _of_nobody}
