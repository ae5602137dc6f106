"""Changes while streams run: keys, versions, clients."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from demo import ADAPTERS, MODEL_NAME, TENANTS
from tests.stack.asking import CHAT, ask, chunks, long, running, text_of, until
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

SUPPORT, PIRATE, EXTRACT = TENANTS


def test_a_revoked_key_ends_its_open_stream_with_an_error_chunk(stack: Stack) -> None:
    with stack.manager(stack.key(SUPPORT.slug)) as owner:
        made = owner.post("/api/v1/keys", json={"name": "brief", "scopes": ["inference"]})
        assert made.status_code == 201, made.text
        secret = next(value for value in made.json().values() if str(value).startswith("lk_"))
        with stack.client(secret) as client:
            with client.stream("POST", CHAT, json=long()) as response:
                seen: list[Any] = []
                for chunk in chunks(response):
                    if not seen:
                        assert owner.delete(f"/api/v1/keys/{made.json()['id']}").is_success
                    seen.append(chunk)
            assert seen[-1]["error"]["code"] == "api_key_revoked"
            refused = client.post(CHAT, json=ask(MODEL_NAME))
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


def test_a_client_that_leaves_frees_the_engine_and_pays_for_what_was_made(
    stack: Stack, operator: httpx.Client
) -> None:
    with stack.client(stack.key(SUPPORT.slug)) as client:
        with client.stream("POST", CHAT, json=long()) as response:
            id = response.headers["x-request-id"].removeprefix("req_")
            received = 0
            for chunk in chunks(response):
                received += bool(chunk["choices"][0]["delta"].get("content"))
                if received == 20:
                    break
        until(lambda: running(operator) == 0)
        event: dict[str, Any] = {}
        until(lambda: event.update(_event(stack, id)) or event)
    assert event["finish_reason"] == "cancelled"
    assert 20 <= event["completion_tokens"] < 200


def _event(stack: Stack, id: str) -> dict[str, Any]:
    """The ledger's row of one request, read from PostgreSQL."""
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(stack.database_url, row_factory=dict_row) as connection:
        query = "SELECT * FROM tenants_usageevent WHERE id = %s"
        return connection.execute(query, [id]).fetchone() or {}


def test_usage_sums_to_what_the_answers_said(stack: Stack) -> None:
    key = stack.key(EXTRACT.slug)
    with stack.client(key) as client, stack.manager(key) as manager:

        def total() -> dict[str, int]:
            rows = manager.get("/api/v1/usage", params={"by": "adapter"}).json()["results"]
            names = ("requests", "prompt_tokens", "completion_tokens")
            return {name: sum(row[name] for row in rows) for name in names}

        before = total()
        answers = [client.post(CHAT, json=ask(EXTRACT.adapter)).json()["usage"] for _ in range(5)]
        expected = {
            "requests": before["requests"] + 5,
            "prompt_tokens": before["prompt_tokens"] + sum(u["prompt_tokens"] for u in answers),
            "completion_tokens": before["completion_tokens"]
            + sum(u["completion_tokens"] for u in answers),
        }
        until(lambda: total() == expected)


def test_promote_and_roll_back_while_a_stream_runs(stack: Stack) -> None:
    """A stream ends with the version with which it began; the next request gets the new one."""
    key = stack.key(PIRATE.slug)
    with stack.client(key) as client, stack.client(key) as other, stack.manager(key) as manager:
        plain = client.post(CHAT, json=ask(PIRATE.adapter)).json()
        old = text_of(_stream(client, long(PIRATE.adapter)))
        version = _upload(manager, PIRATE.adapter, EXTRACT.adapter)
        with client.stream("POST", CHAT, json=long(PIRATE.adapter)) as response:
            following = chunks(response)
            first = next(following)
            promoted = manager.put(
                f"/api/v1/adapters/{PIRATE.adapter}/aliases/live", json={"version": version}
            )
            assert promoted.is_success, promoted.text
            until(lambda: _choices(other, PIRATE.adapter) != plain["choices"])
            pinned = _choices(other, f"{PIRATE.adapter}@1")
            path = f"/api/v1/adapters/{PIRATE.adapter}/aliases/live/roll_back"
            assert manager.post(path).is_success
            until(lambda: _choices(other, PIRATE.adapter) == plain["choices"])
            archived = manager.post(f"/api/v1/adapters/{PIRATE.adapter}/versions/{version}/archive")
            assert archived.is_success, archived.text
            pin = ask(f"{PIRATE.adapter}@{version}")
            until(lambda: other.post(CHAT, json=pin).status_code == 404)
            assert text_of([first, *following]) == old
    assert pinned == plain["choices"]


def _choices(client: httpx.Client, model: str) -> Any:
    return client.post(CHAT, json=ask(model)).json()["choices"]


def _stream(client: httpx.Client, body: dict[str, Any]) -> list[Any]:
    with client.stream("POST", CHAT, json=body) as response:
        return list(chunks(response))


def _upload(manager: httpx.Client, name: str, content: str) -> int:
    """Upload the files of a demo adapter as a version of `name`; wait until it is ready."""
    files = [("files", (f.name, f.read_bytes())) for f in sorted(ADAPTERS[content].iterdir())]
    made = manager.post(f"/api/v1/adapters/{name}/versions", files=files)
    assert made.is_success, made.text
    url = f"/api/v1/adapters/{name}/versions/{made.json()['number']}"
    until(lambda: manager.get(url).json()["state"] == "ready")
    return int(made.json()["number"])
