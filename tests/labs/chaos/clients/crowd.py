"""Programs of the tenants: each sends one request after another and records what it received."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from inference.operations.instant import InstantOperation
from inference.operations.openai import OpenAIOperation
from inference.operations.operation import Operation
from inference.operations.registry import OPERATIONS
from tests.inference.operations.examples import EXAMPLES
from tests.labs.chaos.clients.customers import Customer
from tests.labs.chaos.judging.facts import Received
from tests.labs.chaos.judging.sources.answers import receive

TIMEOUT_S = 60.0
"""Seconds after which a request counts as hung. Longer than a gateway lets any request take,
including one that first waits for another request of its idempotency key and for an unavailable
database."""
THINK_S = (0.1, 0.9)
PAUSE_S = 0.5
"""Seconds to wait after a failed request."""
KEYED = 0.3
"""Share of the requests that have an idempotency key."""
LIMITED = ("rate_limit_exceeded", "insufficient_quota")
ATTEMPTS, REFUSALS = 8, 20
"""Failures and refusals after which a client stops repeating a request with an idempotency key."""
OPENING = (
    "You are the assistant of a company that sells tea, coffee and chocolate in many countries. "
    "Answer in one short and polite sentence, and never speak of anything else than the shop. "
)
"""More than a hundred characters that all prompts of a tenant share, for its prefix cache."""

OFTEN = 10
"""Chats for each request of another operation."""
MOST_TEXTS = 60
"""Of a pooling request: at one text per step, as many take two seconds."""
IDS = [5, 6, 7]
"""Token ids that any real model has."""


@dataclass(frozen=True)
class Request:
    """One request. The client hangs up after `leaves_after`: pieces of a stream, or seconds if the
    answer does not stream."""

    path: str
    body: dict[str, Any]
    leaves_after: float | None = None
    idempotency_key: str = ""

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass
class Crowd:
    """All clients of a run.

    `four_letters`: each of the engine's tokens has four characters, so that a text tells its number
    of tokens; otherwise each piece is only known to have at least one.
    """

    customers: list[Customer]
    urls: dict[str, str]
    is_ready: Callable[[str], bool]
    four_letters: bool
    received: list[Received] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: count[int] = field(default_factory=count)
    operations: list[Operation] = field(default_factory=lambda: [*OPERATIONS])

    @property
    def weights(self) -> list[int]:
        """Relative frequency of each operation."""
        return [OFTEN if one.name == "chat" else 1 for one in self.operations]

    async def all_served(self) -> bool:
        """Whether each customer got an answer."""
        served = {one.tenant for one in self.received if one.complete}
        return all(customer.slug in served for customer in self.customers)

    def all_answered(self) -> bool:
        """Whether each operation was answered, and those that can stream in both ways."""
        got = {(one.path, one.streams) for one in self.received if one.complete}
        return got >= {
            (one.path, streams)
            for one in self.operations
            for streams in ({False, True} if EXAMPLES[one.name].bound else {False})
        }

    async def run(self, seed: int, clients_each: int) -> None:
        """Send requests until `over` is set; returns when the last one has ended."""
        async with asyncio.TaskGroup() as tasks:
            for number, customer in enumerate(self.customers * clients_each):
                luck = random.Random(f"{seed}/{number}")
                tasks.create_task(_Client(self, customer, luck).run())


class _Client:
    """One program with one of its tenant's keys."""

    def __init__(self, crowd: Crowd, customer: Customer, luck: random.Random) -> None:
        self._crowd, self._customer, self._luck = crowd, customer, luck
        self._key = luck.choices(customer.keys, (3, 1))[0]

    async def run(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=None) as self._http:
            while not self._crowd.over.is_set():
                await self._work()
                await asyncio.sleep(self._luck.uniform(*THINK_S))

    async def _work(self) -> None:
        request = self._request()
        if not request.idempotency_key:
            await self._send(request)
        elif self._luck.random() < 0.5:
            await asyncio.gather(self._insist(request), self._insist(request))
        elif await self._insist(request):
            await self._send(request)

    async def _insist(self, request: Request) -> bool:
        """Repeat the request until there is an answer, as a careful program does; limits are given
        more tries. Returns whether there was one."""
        failures = refusals = 0
        while failures < ATTEMPTS and refusals < REFUSALS:
            one = await self._send(request)
            if one.complete:
                return True
            if one.error in LIMITED:
                refusals += 1
            else:
                failures += 1
        return False

    def _request(self) -> Request:
        luck, number = self._luck, next(self._crowd.numbers)
        operation = luck.choices(self._crowd.operations, self._crowd.weights)[0]
        text = f"Request {number}: what do you have? " + "Tell me more. " * luck.randrange(6)
        body = EXAMPLES[operation.name].body(self._model(operation), OPENING + text)
        if operation.pools:
            _have_texts(body, luck.randint(1, MOST_TEXTS), text)
        elif isinstance(operation, InstantOperation):
            if "tokens" in body and not self._crowd.four_letters:
                body["tokens"] = IDS
        else:
            self._vary(body, operation, number)
        if luck.random() < KEYED:
            return Request(operation.path, body, idempotency_key=f"order-{number}")
        return Request(operation.path, body, self._timeout_s(bool(body.get("stream"))))

    def _model(self, operation: Operation) -> str:
        customer = self._customer
        return customer.embedding if operation.pools else self._luck.choice(customer.models)

    def _vary(self, body: dict[str, Any], operation: Operation, number: int) -> None:
        """Vary how and how much is generated, and whether it streams."""
        luck = self._luck
        if luck.random() < 0.3 or "seed" not in operation.accepted:
            body["temperature"] = 0
        else:
            body |= {"temperature": 0.8, "seed": number}
        if luck.random() < 0.9:
            bound = EXAMPLES[operation.name].bound
            body |= {bound: luck.randint(4, 90), "ignore_eos": True}
        if luck.random() < 0.7:
            body["stream"] = True
        if isinstance(operation, OpenAIOperation):
            self._vary_openais(body)

    def _vary_openais(self, body: dict[str, Any]) -> None:
        luck = self._luck
        if luck.random() < 0.1 and body["temperature"]:  # vLLM refuses several greedy choices
            body["n"] = 2
        if luck.random() < 0.1:
            body["service_tier"] = "flex"
        if body.get("stream"):
            body["stream_options"] = {"include_usage": True}

    def _timeout_s(self, streams: bool) -> float | None:
        if self._luck.random() > 0.2:
            return None
        return self._luck.randint(1, 20) if streams else self._luck.uniform(0.1, 1.5)

    async def _send(self, request: Request) -> Received:
        gateway = await self._gateway()
        one = Received(
            self._customer.slug,
            gateway,
            began=time.time(),
            key=self._key,
            path=request.path,
            body=request.body,
            streams=request.streams,
            idempotency_key=request.idempotency_key,
        )
        self._crowd.received.append(one)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._receive(request, one)
        except TimeoutError:
            one.wrong = f"hung: it had not ended after {TIMEOUT_S:.0f} s"
        except httpx.HTTPError as error:
            one.broken = f"{type(error).__name__}: {error} ({_cause(error)!r})"
        one.ended = time.time()
        if not (one.complete or one.left):
            await asyncio.sleep(PAUSE_S)
        return one

    async def _gateway(self) -> str:
        """Any gateway, but preferably one that is ready, as a load balancer would choose."""
        names = list(self._crowd.urls)
        if self._luck.random() < 0.05:
            return self._luck.choice(names)
        ready: list[str] = []
        while not ready:
            ready = [name for name in names if self._crowd.is_ready(name)]
            await asyncio.sleep(0.0 if ready else PAUSE_S)
        return self._luck.choice(ready)

    async def _receive(self, request: Request, one: Received) -> None:
        leaves = request.leaves_after
        async with _leaving(None if request.streams else leaves, one):
            async with self._http.stream(
                "POST",
                self._crowd.urls[one.gateway] + request.path,
                json=request.body,
                headers=self._headers(request),
            ) as response:
                hangs_up_after = leaves if request.streams else None
                await receive(response, one, hangs_up_after, four_letters=self._crowd.four_letters)

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._key}"}
        if request.idempotency_key:
            headers["Idempotency-Key"] = request.idempotency_key
        return headers


def _cause(error: BaseException) -> BaseException:
    """What the system said: the client wraps it several times."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _have_texts(body: dict[str, Any], count: int, text: str) -> None:
    """Give each list of texts in the body `count` entries."""
    for name, value in body.items():
        if isinstance(value, list):
            body[name] = [f"{text} {number}" for number in range(count)]


@asynccontextmanager
async def _leaving(after_s: float | None, one: Received) -> AsyncIterator[None]:
    """Hang up after this many seconds."""
    try:
        async with asyncio.timeout(after_s) as leaving:
            yield
    except TimeoutError:
        if not leaving.expired():
            raise
        one.left = True
