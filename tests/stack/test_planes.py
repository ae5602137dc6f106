"""Each plane is unaffected by failures of the other; and an ingress puts both under one origin."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

import httpx
import psycopg
import pytest
from openai import OpenAI
from psycopg.rows import dict_row
from websockets.sync.client import connect

from demo import MODEL_NAME, TENANTS
from tests.stack.asking import CHAT, ask, chunks, until
from tests.stack.conftest import PACE
from tests.stack.running import Stack, signed_in

pytestmark = pytest.mark.stack
HUNG_S = 10.0
TENANT = TENANTS[0]


def test_an_ingress_puts_both_under_one_origin(stack: Stack) -> None:
    key = stack.key(TENANT.slug)
    assert stack.facts["base_url"] == f"{stack.console_url}/v1"
    with OpenAI(base_url=stack.facts["base_url"], api_key=key) as client:
        said = client.chat.completions.create(
            model=MODEL_NAME, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
        assert said.usage is not None and said.usage.completion_tokens == 4
    with stack.manager(key) as manager:
        since = {"start_time": int(time.time()) - 3600}
        for path in ("/v1/organization/usage/completions", "/v1/usage/receipts"):
            assert manager.get(path, params=since).is_success, path
        assert manager.get("/api/v1/adapters").json()["count"]
        assert manager.get("/v1/models").json()["data"]
        assert manager.get("/internal/fleet").status_code == 404
    for gateway in stack.urls:  # a loop would end in a refusal
        found = httpx.get(gateway, timeout=30)
        assert found.status_code == 404, "there is no other address to send a browser to"


def test_reports_are_had_at_every_gateways_own_address(stack: Stack) -> None:
    headers = {"Authorization": f"Bearer {stack.key(TENANT.slug)}"}
    since = {"start_time": int(time.time()) - 3600}
    for gateway in stack.urls:
        where = f"{gateway}/v1/organization/usage/completions"
        answer = httpx.get(where, headers=headers, params=since, timeout=30)
        assert answer.is_success and answer.json()["object"] == "page", answer.text
        assert httpx.get(where, params=since, timeout=30).status_code == 401
        assert httpx.post(where, headers=headers, timeout=30).status_code == 405
        looped = httpx.get(where, headers=headers | {"x-lorikeet-forwarded": "1"}, timeout=30)
        assert looped.status_code == 503


def test_a_page_chats_through_the_ingress_with_a_ticket(stack: Stack) -> None:
    with signed_in(stack) as page:
        wish = {"purpose": "playground", "tenant": TENANT.slug}
        ticket = page.post("/tickets", json=wish).json()["ticket"]
        url = stack.console_url.replace("http", "ws", 1) + f"/ws/playground/{TENANT.slug}"
        with connect(url, additional_headers={"Origin": stack.console_url}) as tab:
            tab.send(json.dumps({"type": "ticket", "ticket": ticket}))
            turns = [{"role": "user", "content": "Hello"}]
            start = {"type": "start", "id": "a", "model": MODEL_NAME, "messages": turns}
            tab.send(json.dumps(start))
            while (message := json.loads(tab.recv(60)))["type"] not in ("done", "error"):
                pass
            assert message["type"] == "done", message
            assert page.post("/account/logout/").status_code == 200
            with pytest.raises(Exception, match="4401"):
                tab.recv(30)


def test_the_fleet_is_shown_whichever_gateway_has_it(stack: Stack) -> None:
    with signed_in(stack) as operator:

        def told(*silent: str) -> bool:
            """Whether exactly these are silent now: one that is slow for a second counts, too."""
            found = operator.get("/api/v1/engines").json()
            ids = [one["id"] for one in found["results"]]
            return (ids, found["silent_gateways"]) == (["engine-1"], [*silent])

        until(told)
        url = stack.urls[1]
        second = stack.gateway(url)
        second.suspend()
        try:
            until(lambda: told(url))
            assert "did not answer" in operator.get("/operate/engines").text
        finally:
            second.resume()
        until(lambda: not operator.get("/api/v1/engines").json()["silent_gateways"])


class Streaming(threading.Thread):
    """A client whose stream runs for the whole of a test; notes when each chunk arrived."""

    def __init__(self, url: str, key: str, tokens: int) -> None:
        super().__init__()
        self._url, self._key, self._tokens = url, key, tokens
        self.came: list[float] = []
        self.last: Any = None
        self.started = threading.Event()

    def run(self) -> None:
        body = ask(MODEL_NAME, max_tokens=self._tokens, ignore_eos=True, stream=True)
        headers = {"Authorization": f"Bearer {self._key}"}
        with (
            httpx.Client(base_url=self._url, headers=headers, timeout=120) as client,
            client.stream("POST", CHAT, json=body) as response,
        ):
            for chunk in chunks(response):
                if isinstance(chunk, dict):
                    self.came.append(time.monotonic())
                    self.last = chunk
                self.started.set()


def test_nobody_notices_a_console_that_hangs(stack: Stack) -> None:
    """Streams continue, requests are answered, limits hold, a key's revocation takes
    effect, and everything is in the ledger."""
    gateway = stack.url
    (console,) = stack.children("console")
    with signed_in(stack) as operator:
        body = {"scopes": ["inference"]}
        where = {"tenant": TENANT.slug}
        made, limited = (
            _made(operator, "/api/v1/keys", where, body | {"name": name})
            for name in ("brief", "limited")
        )
        limits = f"/api/v1/keys/{limited['id']}/limits"
        told = {"operator": {"requests_per_minute": 3}}
        answer = operator.patch(limits, params=where, json=told)
        assert answer.is_success, answer.text
    key, brief = stack.key(TENANT.slug), made["secret"]
    until(lambda: post(gateway, brief).is_success)
    until(lambda: "x-ratelimit-limit-requests" in models(gateway, limited["secret"]).headers)
    steady = Streaming(gateway, key, tokens=int(PACE * (HUNG_S + 5)))
    ended = Streaming(gateway, brief, tokens=2000)
    console.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        for stream in (steady, ended):
            stream.start()
            assert stream.started.wait(60)
        asked = [post(gateway, limited["secret"]).status_code for _ in range(4)]
        assert asked == [200, 200, 200, 429]
        with psycopg.connect(stack.database_url, row_factory=dict_row) as database:
            database.execute(
                "UPDATE tenants_apikey SET revoked_at = now() WHERE id = %s", [made["id"]]
            )
            database.commit()
            ended.join(30)
            assert ended.last["error"]["code"] == "api_key_revoked"
            answers = []
            while time.monotonic() - began < HUNG_S:
                answers.append(post(gateway, key))
                time.sleep(0.5)
            assert all(one.is_success for one in answers)
            assert httpx.get(f"{gateway}/readyz", timeout=30).is_success
            ids = [one.headers["x-request-id"].removeprefix("req_") for one in answers]
            count = "SELECT count(*) AS found FROM tenants_usageevent WHERE id = ANY(%s)"
            until(lambda: _found(database, count, ids) == len(ids))
        assert console.status() == "stopped"
    finally:
        console.send_signal(signal.SIGCONT)
    steady.join(60)
    assert steady.last["choices"][0]["finish_reason"] == "length"
    assert steady.came[-1] - began > HUNG_S, "it ran for as long as the console hung"
    with signed_in(stack) as operator:
        until(lambda: operator.get("/api/v1/engines").json()["count"] == 1)


def _made(operator: httpx.Client, where: str, params: Any, body: Any) -> Any:
    answer = operator.post(where, params=params, json=body)
    assert answer.is_success, answer.text
    return answer.json()


def _found(database: psycopg.Connection[Any], query: Any, ids: list[str]) -> int:
    row = database.execute(query, [ids]).fetchone()
    database.commit()
    assert row is not None
    return int(row["found"])


def post(gateway: str, key: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    body = ask(MODEL_NAME, max_tokens=2)
    return httpx.post(gateway + CHAT, headers=headers, json=body, timeout=60)


def models(gateway: str, key: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{gateway}/v1/models", headers=headers, timeout=60)
