"""Where the live topics of state come from: one sample for all who watch, rendered as the pages do.

Each is asked for all watched keys at once, in a thread, for pages ask the database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from channels.db import database_sync_to_async
from django.template.loader import render_to_string

from frontend.live.feeds import Key
from frontend.views import engines as engines_page
from frontend.views import limits as limits_page
from frontend.views import overview as overview_page
from frontend.views.marks import marks
from frontend.views.operate import engines as fleet_page
from frontend.views.operate import overview as installation_page
from tenants.models import Tenant

States = Mapping[Key, Any]
in_thread: Callable[[Callable[[Sequence[Key]], States]], Any] = database_sync_to_async


def _html(template: str, context: Mapping[str, Any]) -> dict[str, str]:
    return {"html": render_to_string(template, dict(context))}


def _tenants(keys: Sequence[Key]) -> dict[Key, Tenant]:
    """The tenant of each key."""
    found = Tenant.objects.in_bulk({key.tenant_id for key in keys})
    return {key: found[key.tenant_id] for key in keys if key.tenant_id in found}


@in_thread
def engines(keys: Sequence[Key]) -> States:
    """The engines that serve a tenant."""
    return {
        key: _html("engines_part.html", engines_page.state(tenant))
        for key, tenant in _tenants(keys).items()
    }


@in_thread
def fleet(keys: Sequence[Key]) -> States:
    """All engines, as operators see them."""
    html = _html("operate/engines_table.html", {"rows": fleet_page.fleet()})
    return dict.fromkeys(keys, html)


@in_thread
def figures(keys: Sequence[Key]) -> States:
    """What all engines do together."""
    html = _html("operate/fleet_figures.html", {"fleet": installation_page.fleet()})
    return dict.fromkeys(keys, html)


@in_thread
def history(keys: Sequence[Key]) -> States:
    """What each engine, or all of them, did in the last quarter of an hour."""
    return {key: _html("operate/history.html", fleet_page.past(key.query)) for key in keys}


@in_thread
def adapters(keys: Sequence[Key]) -> States:
    """Whether a page of a tenant's adapters, or of the version that it asks for, shows the past."""
    found = marks({(key.tenant_id, key.query) for key in keys})
    asked = {key: found.get((key.tenant_id, key.query)) for key in keys}
    return {key: {"mark": mark} for key, mark in asked.items() if mark is not None}


@in_thread
def steps(keys: Sequence[Key]) -> States:
    """A tenant's first-run checklist."""
    return {
        key: _html(
            "overview_steps.html",
            {
                "steps": overview_page.steps(overview_page.progress(tenant)),
                "slug": tenant.slug,
            },
        )
        for key, tenant in _tenants(keys).items()
    }


@in_thread
def limits(keys: Sequence[Key]) -> States:
    """What is used of the limits of a tenant, a key or an adapter."""
    scopes = {
        key: limits_page.scope_of(tenant, key.query) for key, tenant in _tenants(keys).items()
    }
    return {
        key: _html("limits_table.html", limits_page.state(scope))
        for key, scope in scopes.items()
        if scope is not None
    }
