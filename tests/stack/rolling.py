"""Rollouts of a running stack over the operator's API, and which engines answer meanwhile."""

from __future__ import annotations

from typing import Any

import httpx
import psycopg

from demo import MODEL_NAME, TENANTS
from tests.stack.asking import CHAT, ask, until
from tests.stack.running import Stack

FIRST = "engine-1"
POLL_S = 2.5
"""Longest pause between polls of a rollout: half the time between two checks by a worker."""


def api(operator: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    answer = operator.request(method, f"/api/v1/{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


def revisions(operator: httpx.Client, **known: Any) -> list[dict[str, Any]]:
    rows = api(operator, "GET", "revisions")["results"]
    return [row for row in rows if known.items() <= row.items()]


def answered_by(stack: Stack, times: int = 1) -> dict[str, set[str]]:
    """Ask the adapter and the base model as each of the demo's tenants. Returns the engines that
    answered each tenant."""
    asked = ask_all(stack, times)
    engines = engines_of(stack, set(asked))
    found: dict[str, set[str]] = {tenant.slug: set() for tenant in TENANTS}
    for id, slug in asked.items():
        found[slug].add(engines[id])
    return found


def ask_all(stack: Stack, times: int = 1) -> dict[str, str]:
    """Ask the adapter and the base model as each of the demo's tenants, for a short answer. Returns
    the tenant of each request's id."""
    asked: dict[str, str] = {}
    for tenant in TENANTS:
        with stack.client(stack.key(tenant.slug)) as client:
            for model in (tenant.adapter, MODEL_NAME) * times:
                answer = client.post(CHAT, json=ask(model, max_tokens=2))
                assert answer.status_code == 200, answer.text
                asked[answer.headers["x-request-id"].removeprefix("req_")] = tenant.slug
    return asked


def engines_of(stack: Stack, ids: set[str]) -> dict[str, str]:
    """The engine of each request, from the ledger."""
    query = "SELECT id, engine_id FROM tenants_usageevent WHERE id = ANY(%s)"
    with psycopg.connect(stack.database_url, autocommit=True) as ledger:
        until(lambda: ledger.execute(query, [list(ids)]).rowcount == len(ids))
        return dict(ledger.execute(query, [list(ids)]).fetchall())
