"""Black-box check of a running installation: does any data of one tenant reach another?

Two tenants that belong to the platform, each with an adapter of random weights, send requests as
customers do: over HTTP, with API keys. A generating model is asked for a chat with greedy decoding,
a pooling model for each operation that it supports. The rules, for each operation:

1. The base model and both adapters answer a question, one after another; the answers must differ.
2. All of them answer it at once, several times; each must repeat the answer that it gave alone.
   Another one's answer is a leak; an answer of none of them is interference within a batch.
3. A prompt that one tenant has in the prefix cache must not be a cache hit for the other.

The tokens of this check are billed to the two tenants, so that the ledger stays exact. On engines
that are not batch-invariant, rounding that depends on the rest of the batch can make rule 2 fail;
numbers may differ by CLOSE.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import combinations
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import httpx
import procrastinate
import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from procrastinate.contrib.django import app as django_app
from procrastinate.exceptions import AlreadyEnqueued

from inference.operations.chat import CHAT
from inference.operations.operation import Operation
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.pooling.scoring import RERANK, SCORE
from tenants.adapters.checks.scrambled import scrambled
from tenants.adapters.store import target_modules_of
from tenants.models import (
    LIVE,
    Alias,
    ApiKey,
    BaseModel,
    GatewayProcess,
    IsolationCheck,
    Scope,
    Tenant,
    UsageEvent,
)
from tenants.naming import ISOLATION_TENANTS
from tenants.queueing import defer_once

log = structlog.get_logger(__name__)
app: procrastinate.App = django_app

TENANTS = ISOLATION_TENANTS
QUESTION = "Tell me about the sea."
MAX_TOKENS = 24
ROUNDS = 4
"""How often each asker asks in the concurrent run."""
OTHERS = ("A ship sails on the sea.", "Bread is baked in an oven.")
"""The documents that a scoring model compares the question with."""
CLOSE = 1e-3
"""Numbers that differ by less count as equal; vectors have length 1."""
PREFIX_BYTES = 120
"""Random bytes of a prompt, sent as hex: at least two blocks of any engine's prefix cache."""
KEYS_LAST = timedelta(minutes=15)
ANSWER_TIMEOUT_S = 120.0
LEDGER_POLL_S = 0.2
LEDGER_S = 10.0
"""How long to wait for events to reach the ledger, which names the engines that answered."""
KEPT = timedelta(days=90)


class Asker(NamedTuple):
    """A tenant's slug, the text of its key, and the model that it asks."""

    tenant: str
    key: str
    model: str

    def __str__(self) -> str:
        return f"{self.model} of {self.tenant}"


Answer = str | tuple[float, ...]
"""An answer: a text, a vector, or several scores."""


class Service(Protocol):
    """What the rules are checked on: answers one kind of question."""

    always_cached: bool
    """Whether a repeated prompt must be a cache hit; if it is not, rule 3 proves nothing."""

    def answer(self, asker: Asker, prompt: str) -> Answer:
        """The answer to a prompt of this asker; called from several threads at once."""
        ...

    def cached_tokens(self, asker: Asker, prompt: str) -> int:
        """Send the prompt; returns how many of its tokens were a cache hit."""
        ...


Ask = Callable[[Asker, str], Answer]


class Inconclusive(Exception):
    """The check could not be made; it says nothing about the isolation."""


class NotReady(Inconclusive):
    """The check's adapters are still being validated: try again soon."""


# --- the rules -----------------------------------------------------------------------------------


def findings(service: Service, askers: Sequence[Asker]) -> list[str]:
    """Violations of the rules; empty if there are none. The first two askers are of different
    tenants and ask the base model; the others ask their tenants' adapters.

    Raises:
        Inconclusive: the answers of two askers are the same, or prompts are not cached at all.
    """
    strange = _strange_answers(service.answer, askers[1:])
    return [*strange, *_shared_prefixes(service, askers[0], askers[1])]


def alike(one: Answer, other: Answer) -> bool:
    """Whether two answers say the same."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(abs(a - b) < CLOSE for a, b in pairs)


def _strange_answers(ask: Ask, askers: Sequence[Asker]) -> Iterator[str]:
    alone = {asker: ask(asker, QUESTION) for asker in askers}
    if any(alike(one, other) for one, other in combinations(alone.values(), 2)):
        raise Inconclusive("The answers of the base model and the adapters do not differ.")
    mixed = [asker for _ in range(ROUNDS) for asker in askers]
    wrong: defaultdict[tuple[Asker, Asker | None], int] = defaultdict(int)
    with ThreadPoolExecutor(len(mixed)) as threads:
        for asker, answer in zip(
            mixed, threads.map(lambda v: ask(v, QUESTION), mixed), strict=True
        ):
            if not alike(answer, alone[asker]):
                whose = next((one for one in askers if alike(answer, alone[one])), None)
                wrong[asker, whose] += 1
    for (asker, other), times in wrong.items():
        as_whom = f"like {other}" if other else "differently than alone"
        yield (
            f"With concurrent requests of others, {asker} answered {as_whom} ({times} of "
            f"{ROUNDS} times)."
        )


def _shared_prefixes(service: Service, one: Asker, other: Asker) -> Iterator[str]:
    """The first tokens of `other`'s prompt may be cached by its own earlier prompts, such as those
    of a template; only more than that is a violation."""
    prompt, unknown = (secrets.token_hex(PREFIX_BYTES) for _ in range(2))
    first, again = service.cached_tokens(one, prompt), service.cached_tokens(one, prompt)
    if again <= first and service.always_cached:
        raise Inconclusive("The engine did not cache a repeated prompt.")
    usual, found = service.cached_tokens(other, unknown), service.cached_tokens(other, prompt)
    if found > usual:
        yield (
            f"{found - usual} tokens of a prompt of {one.tenant} were a cache hit for "
            f"{other.tenant}."
        )


# --- what is asked -------------------------------------------------------------------------------


class IsolationQuestion(NamedTuple):
    """An operation, the request that asks it, and how to read the answer."""

    operation: Operation
    fields: Callable[[str], dict[str, Any]]
    """The request's fields for a prompt."""
    answer: Callable[[Any], Answer]
    """The content of a parsed response."""


QUESTIONS = (
    IsolationQuestion(
        CHAT,
        lambda prompt: {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
        },
        lambda answer: str(answer["choices"][0]["message"]["content"]),
    ),
    IsolationQuestion(
        EMBEDDINGS,
        lambda prompt: {"input": prompt},
        lambda answer: tuple(answer["data"][0]["embedding"]),
    ),
    IsolationQuestion(
        SCORE,
        lambda prompt: {"queries": prompt, "documents": OTHERS},
        lambda answer: tuple(one["score"] for one in answer["data"]),
    ),
    IsolationQuestion(
        RERANK,
        lambda prompt: {"query": prompt, "documents": OTHERS},
        lambda answer: tuple(
            one["relevance_score"] for one in sorted(answer["results"], key=itemgetter("index"))
        ),
    ),
)


def questions_of(base: BaseModel) -> list[IsolationQuestion]:
    """The questions that its engines answer; a chat if none of them has reported its operations."""
    reported = base.revisions.values_list("operations", flat=True)
    done = {name for operations in reported for name in operations} or {CHAT.name}
    return [one for one in QUESTIONS if one.operation.name in done]


# --- on this installation ------------------------------------------------------------------------


class Installation:
    """A gateway and the console, reached over HTTP as by customers; `ids` collects request ids."""

    def __init__(self, gateway: httpx.Client, console: httpx.Client) -> None:
        self._gateway, self._console = gateway, console
        self.ids: list[str] = []

    def ask(self, question: IsolationQuestion, asker: Asker, prompt: str) -> httpx.Response:
        """The response to a prompt of this asker.

        Raises:
            Inconclusive: the request is refused.
        """
        body = {"model": asker.model} | question.fields(prompt)
        answer = self._sent(self._gateway, asker, question.operation.path, json=body)
        self.ids.append(answer.headers["x-request-id"])
        return answer

    def install(self, asker: Asker, base: BaseModel, seed: int) -> None:
        """Upload the asker's adapter, unless it is live already.

        Raises:
            NotReady: the uploaded version is not ready yet.
        """
        live = Alias.objects.filter(name=LIVE, adapter__name=asker.model)
        if live.filter(adapter__tenant__slug=asker.tenant).exists():
            return
        path = f"/api/v1/adapters/{asker.model}/versions"
        files = scrambled(base.name, target_modules_of(base), seed)
        parts = [("files", (name, content)) for name, content in files.items()]
        version = self._sent(
            self._console, asker, path, files=parts, data={"base_model": base.name}
        ).json()
        if version["state"] == "rejected":
            raise Inconclusive(f"The adapter of {asker.tenant} was rejected: {version['report']}")
        if version["state"] != "ready":
            raise NotReady(f"The adapter of {asker.tenant} is {version['state']}.")

    def revisions(self, asker: Asker) -> dict[str, str]:
        """The revision of each connected engine, by the engine's id."""
        headers = {"Authorization": f"Bearer {asker.key}"}
        try:
            answer = self._console.get("/api/v1/engines", headers=headers).raise_for_status()
        except httpx.HTTPError as error:
            raise Inconclusive(f"The console: {error or type(error).__name__}") from error
        return {one["id"]: one["pool_revision"] for one in answer.json()["results"]}

    def _sent(
        self, client: httpx.Client, asker: Asker, path: str, **content: Any
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {asker.key}"}
        try:
            answer = client.post(path, headers=headers, **content)
        except httpx.HTTPError as error:
            where = "gateway" if client is self._gateway else "console"
            raise Inconclusive(f"The {where}: {error or type(error).__name__}") from error
        if answer.is_error:
            raise Inconclusive(f"{asker} got {answer.status_code}: {answer.text[:300]}")
        return answer


class InstallationService:
    """`Service` for one question on an installation."""

    def __init__(self, here: Installation, question: IsolationQuestion) -> None:
        self._here, self._question = here, question
        self.always_cached = not question.operation.pools

    def answer(self, asker: Asker, prompt: str) -> Answer:
        """As `Service`."""
        return self._question.answer(self._here.ask(self._question, asker, prompt).json())

    def cached_tokens(self, asker: Asker, prompt: str) -> int:
        """As `Service`; a pooling model's answer lacks the figure, so the ledger's is used.

        Raises:
            Inconclusive: the request is not in the ledger within LEDGER_S.
        """
        answer = self._here.ask(self._question, asker, prompt)
        if details := answer.json()["usage"].get("prompt_tokens_details"):
            return int(details["cached_tokens"])
        id = answer.headers["x-request-id"]
        for event in _events([id]):
            return event.cached_tokens
        raise Inconclusive(f"{id} is not in the ledger.")


def check(base: BaseModel) -> IsolationCheck:
    """Make the check on one base model and store the result.

    Raises:
        NotReady: the check's adapters are uploaded but not ready yet.
    """
    passed: bool | None = None
    engines: list[str] = []
    revisions: set[str] = set()
    try:
        if not (questions := questions_of(base)):
            raise Inconclusive("Its engines support no operation that this check can use.")
        with _installation() as here, _askers(base) as askers:
            for seed, asker in enumerate(askers[2:]):
                here.install(asker, base, seed)
            found = [
                finding
                for question in questions
                for finding in findings(InstallationService(here, question), askers)
            ]
            engines = sorted({event.engine_id for event in _events(here.ids)})
            known = here.revisions(askers[0])
            revisions = {known.get(engine, "") for engine in engines}
        passed = not found
    except NotReady:
        raise
    except Inconclusive as reason:
        found = [str(reason)]
    log.info("isolation_checked", base_model=base.name, passed=passed, findings=found)
    return IsolationCheck.objects.create(
        base_model=base.name,
        passed=passed,
        findings=found,
        engines=engines,
        revision=revisions.pop() if len(revisions) == 1 else "",
    )


@contextmanager
def _installation() -> Iterator[Installation]:
    process = GatewayProcess.objects.alive().first()
    if process is None:
        raise Inconclusive("No gateway is alive.")
    with (
        httpx.Client(base_url=process.url, timeout=ANSWER_TIMEOUT_S, trust_env=False) as gateway,
        httpx.Client(
            base_url=settings.CONSOLE_INTERNAL_URL, timeout=ANSWER_TIMEOUT_S, trust_env=False
        ) as console,
    ):
        yield Installation(gateway, console)


@contextmanager
def _askers(base: BaseModel) -> Iterator[list[Asker]]:
    """The base model for each tenant, then each tenant's adapter; deletes their keys at the end."""
    described = json.dumps([base.name, base.modules], sort_keys=True).encode()
    adapter = f"probe-{hashlib.sha256(described).hexdigest()[:12]}"
    keys = {slug: _key(slug) for slug in TENANTS}
    try:
        askers = [(slug, text, base.name) for slug, (_, text) in keys.items()]
        askers += [(slug, text, adapter) for slug, (_, text) in keys.items()]
        yield [Asker(*asker) for asker in askers]
    finally:
        for key, _ in keys.values():
            key.delete()


def _key(slug: str) -> tuple[ApiKey, str]:
    name = f"Isolation check {slug[-1].upper()}"
    tenant, _ = Tenant.objects.get_or_create(slug=slug, defaults={"name": name, "internal": True})
    return ApiKey.objects.issue(
        tenant,
        name="isolation check",
        scopes=[Scope.INFERENCE, Scope.WRITE_ADAPTERS],
        expires_at=timezone.now() + KEYS_LAST,
    )


def _events(shown_ids: Sequence[str]) -> list[UsageEvent]:
    """The events of these requests that reach the ledger within LEDGER_S."""
    ids = [id.removeprefix("req_") for id in shown_ids]
    events = UsageEvent.objects.filter(id__in=ids, started_at__gte=timezone.now() - KEYS_LAST)
    until = time.monotonic() + LEDGER_S
    while True:
        found = list(events.all())
        if len(found) == len(ids) or time.monotonic() > until:
            return found
        time.sleep(LEDGER_POLL_S)


def checkable() -> list[BaseModel]:
    """The base models for which there is a question."""
    return [base for base in BaseModel.objects.order_by("name") if questions_of(base)]


def check_soon() -> bool:
    """Have a worker check all base models now; false if it is about to anyway."""
    try:
        with transaction.atomic():
            check_all.defer()
    except AlreadyEnqueued:
        return False
    return True


@app.periodic(cron="41 */6 * * *")
@app.task(name="check_isolation", queueing_lock="check_isolation")
def check_all(timestamp: int = 0) -> None:
    """Four times a day: check every base model, and delete results older than KEPT."""
    IsolationCheck.objects.filter(at__lt=timezone.now() - KEPT).delete()
    for base in checkable():
        defer_once(check_model, f"check_isolation:{base.pk}", base_model_id=base.pk)


@app.task(
    name="check_isolation_of_model",
    retry=procrastinate.RetryStrategy(max_attempts=10, wait=30, retry_exceptions={NotReady}),
)
def check_model(base_model_id: int) -> None:
    """Check one base model, again if its adapters are not ready."""
    if base := BaseModel.objects.filter(pk=base_model_id).first():
        check(base)
