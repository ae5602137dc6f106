"""Limits and bills, also after processes are killed, on two gateways."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import Any

import httpx
import pytest
from openai import OpenAI, RateLimitError

from demo import MODEL_NAME, TENANTS
from tests.stack.asking import CHAT, ask, chunks, long, running, serves, text_of, until
from tests.stack.running import START_S, Stack, signed_in

pytestmark = pytest.mark.stack

CLIENTS = 32
ALL_KEPT = httpx.Limits(max_keepalive_connections=None)
"""httpx closes idle connections beyond 20, at times one that it has just given to another thread,
which then fails with EBADF."""
PATIENCE_S = 60.0
"""Timeout of each request, long enough for a busy machine."""
ESTIMATE_TOKENS = 40
"""Largest error of the estimate of a short prompt."""


@pytest.fixture(scope="module")
def office(stack: Stack) -> Iterator[httpx.Client]:
    """A client of the signed-in operator, after setting a price."""
    with signed_in(stack) as client:
        price = {"base_model": MODEL_NAME, "prompt": 1_000_000, "cached_prompt": 250_000}
        made = client.post("/api/v1/prices", json=price | {"output": 16_000_000})
        assert made.status_code == 201, made.text
        yield client


@pytest.fixture
def customer(stack: Stack, office: httpx.Client) -> Customer:
    """A tenant of its own for each test."""
    slug = f"customer{time.time_ns()}"
    assert office.post("/api/v1/tenants", json={"slug": slug, "name": slug}).is_success
    body = {"name": "k", "scopes": ["inference", "usage:read"]}
    made = office.post("/api/v1/keys", params={"tenant": slug}, json=body)
    return Customer(stack, office, slug, made.json()["secret"])


class Customer:
    """A tenant with its key, and what the operator changes of it."""

    def __init__(self, stack: Stack, office: httpx.Client, slug: str, key: str) -> None:
        self.stack, self.slug, self.key = stack, slug, key
        self.headers = {"Authorization": f"Bearer {key}"}
        self._office = office

    def limit(self, **limits: int) -> None:
        """Set ceilings, and wait until both gateways know them."""
        where = {"tenant": self.slug}
        changed = self._office.patch("/api/v1/limits", params=where, json={"operator": limits})
        assert changed.is_success, changed.text
        for url in self.stack.urls:
            until(partial(self._limits_requests, url))

    def _limits_requests(self, url: str) -> bool:
        return "x-ratelimit-limit-requests" in self.models(url).headers

    def get(self, url: str, **params: str) -> httpx.Response:
        return httpx.get(url, headers=self.headers, params=params, timeout=PATIENCE_S)

    def models(self, url: str) -> httpx.Response:
        return self.get(f"{url}/v1/models")

    def burst(self, count: int, body: dict[str, Any]) -> list[httpx.Response]:
        """Send `count` requests at once, alternating between both gateways."""
        with (
            httpx.Client(timeout=120, limits=ALL_KEPT) as client,
            ThreadPoolExecutor(CLIENTS) as threads,
        ):
            urls = self.stack.urls

            def post(i: int) -> httpx.Response:
                return client.post(urls[i % 2] + CHAT, headers=self.headers, json=body)

            return list(threads.map(post, range(count)))

    def receipt(self, answer: Any) -> dict[str, Any]:
        """The receipt of a request, once it is in the ledger."""
        url = f"{self.stack.url}/v1/usage/receipts/{answer.headers['x-request-id']}"
        until(lambda: self.get(url).is_success, START_S)
        receipt: dict[str, Any] = self.get(url).json()["receipt"]
        return receipt

    def costs(self) -> Decimal:
        found = self.get(f"{self.stack.console_url}/api/v1/costs", bucket="all").json()["results"]
        return sum((Decimal(line["cost"]) for line in found), Decimal(0))


def test_no_burst_gets_past_a_limit_of_requests(customer: Customer) -> None:
    customer.limit(requests_per_minute=100)
    answers = customer.burst(250, ask(MODEL_NAME, max_tokens=1))
    assert Counter(answer.status_code for answer in answers) == {200: 100, 429: 150}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert 1 <= int(refused.headers["retry-after"]) <= 61
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    message = refused.json()["error"]["message"]
    assert customer.slug in message and "100 requests per minute" in message


def test_no_burst_gets_past_a_limit_of_tokens(customer: Customer) -> None:
    customer.limit(requests_per_minute=1000, tokens_per_minute=100)
    answers = customer.burst(40, ask(MODEL_NAME, max_tokens=8, ignore_eos=True))
    used = [answer.json()["usage"]["total_tokens"] for answer in answers if answer.is_success]
    assert 0 < sum(used) <= 100 + ESTIMATE_TOKENS
    assert {answer.status_code for answer in answers} == {200, 429}


def test_streams_at_the_same_time_are_limited_and_their_slots_freed(customer: Customer) -> None:
    customer.limit(requests_per_minute=1000, concurrent_streams=2)
    first, second = customer.stack.urls
    with httpx.Client(headers=customer.headers, timeout=120) as client:
        with (
            client.stream("POST", first + CHAT, json=long()) as one,
            client.stream("POST", second + CHAT, json=long()) as two,
        ):
            open_ones = chunks(one), chunks(two)
            assert all(next(stream) for stream in open_ones)
            refused = client.post(second + CHAT, json=ask(MODEL_NAME))
            assert refused.status_code == 429
            assert "2 concurrent requests" in refused.json()["error"]["message"]
        until(lambda: client.post(second + CHAT, json=ask(MODEL_NAME)).is_success)
    for ended in (one, two):
        assert customer.receipt(ended)["finish_reason"] == "cancelled", "and not by its length"


def test_a_budget_of_money_ends_a_stream_and_then_refuses(customer: Customer) -> None:
    customer.limit(requests_per_minute=1000, cost_per_day=2_000)  # 125 tokens of output
    with OpenAI(base_url=f"{customer.stack.url}/v1", api_key=customer.key) as client:
        stream = client.chat.completions.with_raw_response.create(
            model=MODEL_NAME,
            messages=[{"role": "user", "content": "Count for as long as you can."}],
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        seen = list(stream.parse())
        (end,) = (one for one in seen if one.choices and one.choices[0].finish_reason)
        assert end.choices[0].finish_reason == "length"
        details = end.choices[0].model_extra["finish_details"]  # type: ignore[index]
        assert details["code"] == "insufficient_quota"
        with pytest.raises(RateLimitError) as refused:
            client.chat.completions.create(
                model=MODEL_NAME, messages=[{"role": "user", "content": "Hi"}], max_tokens=100
            )
    assert refused.value.code == "insufficient_quota"
    receipt = customer.receipt(stream.http_response)
    usage = seen[-1].usage
    assert usage is not None
    assert receipt["completion_tokens"] == usage.completion_tokens
    assert 0.9 * 2_000 <= int(receipt["cost_pico"]) / 10**6 <= 1.2 * 2_000
    assert customer.costs() == Decimal(receipt["cost"])


def test_one_answer_and_one_bill_for_one_idempotency_key(customer: Customer) -> None:
    first, second = customer.stack.urls
    headers = customer.headers | {"Idempotency-Key": "once"}
    body = ask(MODEL_NAME, stream=True, temperature=1)
    answers = [
        httpx.post(url + CHAT, headers=headers, json=body, timeout=PATIENCE_S)
        for url in (first, second, first)
    ]
    assert len({answer.content for answer in answers}) == 1
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [
        None,
        "true",
        "true",
    ]
    changed = body | {"seed": 1}
    other = httpx.post(second + CHAT, headers=headers, json=changed, timeout=PATIENCE_S)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    billed = Decimal(customer.receipt(answers[2])["cost"])
    assert customer.costs() == billed > 0


def test_a_killed_gateways_open_streams_are_billed_by_the_engine_and_it_comes_back(
    customer: Customer, office: httpx.Client
) -> None:
    url = customer.stack.urls[1]
    doomed = customer.stack.gateway(url)
    seen: list[Any] = []
    with httpx.Client(headers=customer.headers, timeout=PATIENCE_S) as client:
        with (
            pytest.raises(httpx.TransportError),
            client.stream("POST", url + CHAT, json=long()) as response,
        ):
            for chunk in chunks(response):
                seen.append(chunk)
                if len(seen) == 20:
                    doomed.kill()
        receipt = customer.receipt(response)
        assert receipt["finish_reason"] == "gateway_lost"
        assert receipt["completion_tokens"] >= len(seen) - 1
        until(lambda: serves(url))
        until(lambda: running(office) == 0)
        assert client.post(url + CHAT, json=ask(MODEL_NAME)).is_success
    assert "gateway-2 ended with status -9" in (customer.stack.var / "up.log").read_text()


def test_a_killed_engines_open_streams_go_on_when_it_is_back(customer: Customer) -> None:
    stack = customer.stack
    (engine,) = stack.children("engine")
    seen: list[Any] = []
    with httpx.Client(headers=customer.headers, timeout=START_S) as client:
        with client.stream("POST", stack.url + CHAT, json=long()) as response:
            for chunk in chunks(response):
                seen.append(chunk)
                if len(seen) == 20:
                    engine.kill()
                    until(lambda: not any(serves(url) for url in stack.urls))
                    # Balancers keep the gateways, and what is behind them, without engines.
                    assert httpx.get(f"{stack.url}/healthz", timeout=30).is_success
                    assert httpx.get(f"{stack.url}/readyz", timeout=30).is_success
        assert seen[-1] == "[DONE]"
        # The lost engine's journal bills what it generated; the whole answer supersedes that.
        until(lambda: customer.receipt(response)["attempt"] == 2, START_S)
        receipt = customer.receipt(response)
        with client.stream("POST", stack.url + CHAT, json=long()) as response:
            undisturbed = list(chunks(response))
        twin = customer.receipt(response)
    assert text_of(seen[:-1]) == text_of(undisturbed[:-1])
    figures = ("prompt_tokens", "completion_tokens", "finish_reason")
    assert [receipt[name] for name in figures] == [twin[name] for name in figures]
    assert (receipt["attempt"], twin["attempt"]) == (2, 1)
    with stack.client(stack.key(TENANTS[0].slug)) as tenant:
        assert tenant.post(CHAT, json=ask(TENANTS[0].adapter)).is_success


def test_a_killed_redis_holds_nobody_up(customer: Customer) -> None:
    customer.limit(requests_per_minute=1000)
    (redis,) = customer.stack.children("redis")
    redis.kill()
    for url in customer.stack.urls:
        good = httpx.post(
            url + CHAT, headers=customer.headers, json=ask(MODEL_NAME), timeout=PATIENCE_S
        )
        assert good.is_success, good.text
    until(lambda: customer.stack.children("redis"))


def test_in_the_end_everything_agrees(stack: Stack, office: httpx.Client) -> None:
    key = {"Authorization": f"Bearer {stack.key(TENANTS[0].slug)}"}
    answer = httpx.post(stack.url + CHAT, headers=key, json=ask(MODEL_NAME), timeout=PATIENCE_S)
    assert answer.is_success
    until(lambda: stack.manage("reconcile").returncode == 0)
    checked = stack.manage("reconcile", "--check-rollups")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    where = f"{stack.url}/v1/usage/receipts"
    params = {"start_time": int(time.time()) - 3600}
    listed = httpx.get(where, headers=key, params=params, timeout=PATIENCE_S)
    assert listed.is_success, listed.text
    (stack.var / "receipts.json").write_text(listed.text)
    verified = stack.manage("verify_receipt", str(stack.var / "receipts.json"))
    assert verified.returncode == 0, verified.stdout + verified.stderr
