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
