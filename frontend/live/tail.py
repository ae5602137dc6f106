"""The live tail of requests: the ledger says what it has written, pages are told it as rows.

A process tells the others which requests ended, a few for each key at a time, and counts the rest.
Where somebody watches they are read once for all who see the same, and rendered as the page does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from channels.db import database_sync_to_async
from django.http import QueryDict
from django.template.loader import render_to_string

from frontend.live.feeds import Key
from frontend.views.operate.requests import InstallationFilter, events_of
from frontend.views.requests import RequestFilter, rows_of
from tenants.billing.statements import Line
from tenants.models import Tenant
from tenants.models.usage import Mark
from tenants.permissions import Caller, Permission

TOPIC = "requests"
MOST = 50
"""Rows of one key that are told at once; of more the newest, and how many others there were."""
ALL, OWN = "all", "own"

Event = Mapping[str, Any]
"""`tenant`, `key`: row ids; `ended`: pairs of a request's id and its start, a unix time; `more`:
others."""

Rows = Mapping[Key, Sequence[Any]]


def listener(
    wanted: Callable[[str], bool], publish: Callable[[str, int, dict[str, Any]], None]
) -> Callable[[Sequence[Line]], None]:
    """What `Ledger.on_written` calls; tells a board by these two of its methods."""

    def written(lines: Sequence[Line]) -> None:
        if wanted(TOPIC):
            for tenant_id, event in by_key(lines):
                publish(TOPIC, tenant_id, event)

    return written


def by_key(lines: Iterable[Line]) -> Iterable[tuple[int, dict[str, Any]]]:
    """One event for each key, with its tenant."""
    ended: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for line in lines:
        account = line.entry.account
        of_key = ended.setdefault((account.tenant_id, account.key_id), [])
        of_key.append((line.entry.id, account.started_at))
    for (tenant_id, key_id), found in ended.items():
        more = max(0, len(found) - MOST)
        event = {"tenant": tenant_id, "key": key_id, "ended": found[more:], "more": more}
        yield tenant_id, event


def audience(caller: Caller) -> str:
    """Whose requests he sees: everybody's, or those of keys of his own."""
    if caller.may(Permission.READ_USAGE):
        return ALL
    own = caller.tenant.keys.filter(created_by=caller.user).order_by("pk")
    return " ".join([OWN, *map(str, own.values_list("pk", flat=True))])


def show(key: Key, events: Sequence[Event]) -> Sequence[Event]:
    """The events that the key's audience may know of; in the whole installation those are all."""
    if key.audience == ALL or not key.tenant_id:
        return events
    own = {int(pk) for pk in key.audience.removeprefix(OWN).split()}
    return [event for event in events if event["key"] in own]


def _read(events: Mapping[Key, Sequence[Event]]) -> Rows:
    tenants = Tenant.objects.in_bulk({key.tenant_id for key in events})
    return {
        key: list(_rows(tenants.get(key.tenant_id), key.query, theirs))
        for key, theirs in events.items()
        if key.tenant_id in tenants or not key.tenant_id
    }


read: Callable[[Mapping[Key, Sequence[Event]]], Awaitable[Rows]] = database_sync_to_async(_read)
"""Each key's rows, the oldest first: `{"id", "html"}`, and `{"more"}` for those left out."""


def _rows(tenant: Tenant | None, query: str, events: Sequence[Event]) -> Iterable[dict[str, Any]]:
    """Without a tenant of the whole installation, of which the query may name one."""
    asked = QueryDict(query)
    form = RequestFilter(asked, tenant.keys.all()) if tenant else InstallationFilter(asked)
    if not form.is_valid():
        return
    whose = tenant or form.cleaned_data["tenant"]
    theirs = [event for event in events if whose is None or event["tenant"] == whose.pk]
    ended = [one for event in theirs for one in event["ended"]]
    more = sum(event["more"] for event in theirs) + max(0, len(ended) - MOST)
    if more:
        yield {"more": more}
    marks = [Mark(datetime.fromtimestamp(started_at, UTC), id) for id, started_at in ended[-MOST:]]
    found = form.narrow(events_of(whose).marked(marks))
    for row in reversed(rows_of(found.newest())):
        context = {"row": row, "all_tenants": tenant is None}
        yield {"id": row.event.id, "html": render_to_string("requests_row.html", context)}
