"""The isolation check: its findings on fleets that leak, and how it runs on an installation."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest
from django.utils import timezone
from procrastinate.contrib.django.models import ProcrastinateJob

from inference.content import CONFIG, WEIGHTS
from inference.link.accounts import Usage
from inference.operations.registry import OPERATIONS
from tenants import isolation
from tenants.adapters.checks import static
from tenants.adapters.checks.scrambled import scrambled
from tenants.adapters.checks.target_modules import TargetModules
from tenants.isolation import (
    CLOSE,
    QUESTION,
    QUESTIONS,
    ROUNDS,
    Answer,
    Asker,
    Inconclusive,
    Installation,
    InstallationService,
    IsolationQuestion,
    NotReady,
)
from tenants.models import ApiKey, IsolationCheck, Tenant
from tests.adapters.checks.builder import TARGETS
from tests.inference.samples import MODEL
from tests.tenants.making import (
    make_adapter,
    make_base,
    make_base_of,
    make_gateway,
    make_key,
    make_version,
)
from tests.tenants.spending import spend

A, B = "a", "b"
ASKERS = [Asker(A, "k1", "base"), Asker(B, "k2", "base"), Asker(A, "k1", "x"), Asker(B, "k2", "y")]
BASE_A, BASE_B, ADAPTER_A, ADAPTER_B = ASKERS
PREAMBLE = 32
"""Tokens that a chat template puts before every prompt."""


class Fleet:
    """Each asker answers as its model, with one prefix cache per tenant. Each leak can be switched
    on."""

    def __init__(
        self, *, shares_cache: bool = False, caches: bool = True, always_cached: bool = True
    ) -> None:
        self.swapped: dict[Asker, Answer] = {}
        """What these askers answer beside concurrent requests."""
        self.always_cached = always_cached
        self._shares_cache, self._caches = shares_cache, caches
        self._seen: set[tuple[str, str]] = set()
        self._alone: Counter[Asker] = Counter()
        self._lock = threading.Lock()

    def answer(self, asker: Asker, prompt: str) -> Answer:
        with self._lock:
            self._seen.add(("" if self._shares_cache else asker.tenant, ""))
            self._alone[asker] += 1
            alone = self._alone[asker] == 1
        answer = self.own_answer(asker)
        return answer if alone else self.swapped.get(asker, answer)

    def own_answer(self, asker: Asker) -> Answer:
        return f"I am {asker.model}"

    def cached_tokens(self, asker: Asker, prompt: str) -> int:
        whose = "" if self._shares_cache else asker.tenant
        cached = PREAMBLE if (whose, "") in self._seen else 0
        cached += 96 if (whose, prompt) in self._seen else 0
        self._seen |= {(whose, ""), (whose, prompt)}
        return cached if self._caches else 0


class Embedding(Fleet):
    """Each asker answers with a vector of its model, with a different rounding error each time."""

    def own_answer(self, asker: Asker) -> Answer:
        with self._lock:
            wobble = self._alone.total() % 7 * CLOSE / 10
        return (float(len(asker.model)), float(ord(asker.model[0])) + wobble)


def test_a_fleet_that_keeps_tenants_apart_passes() -> None:
    assert isolation.findings(Fleet(), ASKERS) == []


def test_a_base_model_that_answers_as_an_adapter_is_found() -> None:
    fleet = Fleet()
    fleet.swapped = {BASE_B: "I am x"}
    assert isolation.findings(fleet, ASKERS) == [
        "With concurrent requests of others, base of b answered like x of a "
        f"({ROUNDS} of {ROUNDS} times)."
    ]


def test_an_answer_that_nobody_gives_alone_is_found() -> None:
    fleet = Fleet()
    fleet.swapped = {ADAPTER_A: "I am!!", ADAPTER_B: "I am x"}
    first, second = isolation.findings(fleet, ASKERS)
    assert "x of a answered differently than alone" in first
    assert "y of b answered like x of a" in second


def test_vectors_are_told_apart_by_more_than_rounding() -> None:
    assert isolation.findings(Embedding(), ASKERS) == []
    leaking = Embedding()
    leaking.swapped = {ADAPTER_B: leaking.own_answer(ADAPTER_A)}
    assert isolation.findings(leaking, ASKERS) == [
        "With concurrent requests of others, y of b answered like x of a "
        f"({ROUNDS} of {ROUNDS} times)."
    ]


def test_a_model_that_never_caches_shares_no_cache() -> None:
    assert isolation.findings(Embedding(caches=False, always_cached=False), ASKERS) == []
    shared = Embedding(shares_cache=True, always_cached=False)
    assert "cache hit for b" in isolation.findings(shared, ASKERS)[0]


def test_a_cache_that_tenants_share_is_found() -> None:
    assert isolation.findings(Fleet(shares_cache=True), ASKERS) == [
        "96 tokens of a prompt of a were a cache hit for b."
    ]


def test_a_check_without_a_cache_or_differing_answers_is_inconclusive() -> None:
    with pytest.raises(Inconclusive, match="did not cache"):
        isolation.findings(Fleet(caches=False), ASKERS)
    alike = [*ASKERS[:3], Asker(B, "k2", "x")]
    with pytest.raises(Inconclusive, match="do not differ"):
        isolation.findings(Fleet(), alike)


@pytest.mark.parametrize(
    "targets", [TARGETS, TargetModules({"mlp.up": [3, 2], "lm_head": [9, 3]}, 1)]
)
def test_its_adapters_pass_the_checks_of_every_upload(targets: TargetModules) -> None:
    files = scrambled("tiny", targets, 0)
    verdict = static.check(
        io.BytesIO(files[CONFIG]), io.BytesIO(files[WEIGHTS]), len(files[WEIGHTS]), targets
    )
    assert verdict.accepted, verdict.report()
    assert files == scrambled("tiny", targets, 0)
    digests = {
        hashlib.sha256(scrambled("tiny", targets, seed)[WEIGHTS]).digest() for seed in range(2)
    }
    assert len(digests) == 2


# --- On an installation --------------------------------------------------------------------------


def gateway(answer: httpx.Response | httpx.HTTPError) -> Installation:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return answer

    client = httpx.Client(base_url="http://gw", transport=httpx.MockTransport(handle))
    return Installation(client, client)


CHAT = QUESTIONS[0]
ANSWERS: dict[str, tuple[dict[str, Any], Answer]] = {
    "chat": ({"choices": [{"message": {"content": "blue"}}]}, "blue"),
    "embeddings": ({"data": [{"embedding": [0.6, 0.8]}]}, (0.6, 0.8)),
    "score": ({"data": [{"score": 0.5}, {"score": 0.25}]}, (0.5, 0.25)),
    "rerank": (
        {"results": [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": 0.25}]},
        (0.25, 0.5),
    ),
}


def test_every_pooling_operation_has_a_question() -> None:
    asked = {one.operation.name for one in QUESTIONS}
    assert asked == {"chat"} | {one.name for one in OPERATIONS if one.pools}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda one: one.operation.name)
def test_an_answer_is_read_and_its_request_noted(question: IsolationQuestion) -> None:
    body, answer = ANSWERS[question.operation.name]
    one = gateway(httpx.Response(200, json=body, headers={"x-request-id": "req_1"}))
    assert InstallationService(one, question).answer(BASE_A, QUESTION) == answer
    assert one.ids == ["req_1"]
    question.operation.parse(json.dumps({"model": "m"} | question.fields(QUESTION)).encode())


def test_cached_tokens_are_read_from_the_answer() -> None:
    body = {"usage": {"prompt_tokens_details": {"cached_tokens": 32}}}
    one = gateway(httpx.Response(200, json=body, headers={"x-request-id": "req_1"}))
    assert InstallationService(one, CHAT).cached_tokens(BASE_A, QUESTION) == 32


@pytest.mark.django_db
def test_or_else_in_the_ledger(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "LEDGER_S", 0.0)
    event = spend(make_key(tenant)[0], timezone.now(), Usage(100, 40))
    body = {"usage": {"prompt_tokens": 100}}
    for id in (event.pk, "0" * 32):
        headers = {"x-request-id": f"req_{id}"}
        service = InstallationService(
            gateway(httpx.Response(200, json=body, headers=headers)), QUESTIONS[1]
        )
        if id == event.pk:
            assert service.cached_tokens(BASE_A, QUESTION) == 40
        else:
            with pytest.raises(Inconclusive, match="not in the ledger"):
                service.cached_tokens(BASE_A, QUESTION)


@pytest.mark.django_db
def test_each_model_is_asked_for_what_its_engines_do() -> None:
    pooling = msgspec.structs.replace(MODEL, name="embed", operations=["embeddings", "score"])
    tokens = msgspec.structs.replace(MODEL, name="tokens", operations=["tokenize"])
    bases = [make_base("silent"), *map(make_base_of, (pooling, tokens))]
    asked = [[one.operation.name for one in isolation.questions_of(base)] for base in bases]
    assert asked == [["chat"], ["embeddings", "score"], []]
    assert isolation.checkable() == [bases[1], bases[0]]
    found = isolation.check(bases[2])
    reason = "Its engines support no operation that this check can use."
    assert (found.passed, found.findings) == (None, [reason])


def test_a_refusal_tells_nothing_of_isolation() -> None:
    with pytest.raises(Inconclusive, match="base of a got 429: too many"):
        gateway(httpx.Response(429, text="too many")).ask(CHAT, BASE_A, QUESTION)
    with pytest.raises(Inconclusive, match="The gateway: gone"):
        gateway(httpx.ConnectError("gone")).ask(CHAT, BASE_A, QUESTION)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "error"),
    [("validating", NotReady), ("probing", NotReady), ("rejected", Inconclusive)],
)
def test_an_adapter_that_is_not_served_yet(state: str, error: type[Inconclusive]) -> None:
    one = gateway(httpx.Response(201, json={"state": state, "report": {}}))
    with pytest.raises(error, match=state):
        one.install(ADAPTER_A, make_base(), 0)


@pytest.mark.django_db
def test_an_adapter_that_is_live_is_not_sent_again() -> None:
    tenant = Tenant.objects.create(slug=A, name="A")
    version = make_version(make_adapter(tenant, "x"))
    version.adapter.aliases.create(name="live", version=version)
    gateway(httpx.ConnectError("gone")).install(ADAPTER_A, make_base(), 0)


@pytest.mark.django_db
def test_without_a_gateway_the_result_says_so() -> None:
    found = isolation.check(make_base())
    assert (found.passed, found.findings) == (None, ["No gateway is alive."])
    assert found.state == "not checked"
    assert not ApiKey.objects.exists()


@pytest.mark.django_db
def test_its_keys_end_with_it(unused_tcp_port: int, settings: Any) -> None:
    nobody = f"http://127.0.0.1:{unused_tcp_port}"
    settings.CONSOLE_INTERNAL_URL = nobody
    make_gateway(nobody)
    found = isolation.check(make_base())
    assert found.passed is None and found.findings[0].startswith("The console: ")
    assert set(Tenant.objects.values_list("slug", flat=True)) == set(isolation.TENANTS)
    assert not ApiKey.objects.exists()


@pytest.mark.django_db
def test_the_periodic_check_deletes_old_results() -> None:
    base = make_base()
    old = timezone.now() - isolation.KEPT - timedelta(days=1)
    IsolationCheck.objects.create(base_model="base", passed=True, at=old)
    isolation.check_all(0)
    isolation.check_all(0)  # a model is queued once
    assert not IsolationCheck.objects.exists()
    (job,) = ProcrastinateJob.objects.filter(task_name="check_isolation_of_model")
    assert job.args == {"base_model_id": base.pk}
    isolation.check_model(**job.args)
    assert [one.passed for one in IsolationCheck.objects.all()] == [None]
    crons = {task.cron for task in isolation.app.periodic_registry.periodic_tasks.values()}
    assert "41 */6 * * *" in crons and "check_isolation" in isolation.app.tasks


@pytest.mark.django_db
def test_the_latest_result_of_each_base_model() -> None:
    now = timezone.now()
    for minutes, base, passed in ((1, "m", True), (5, "m", False), (9, "l", None)):
        IsolationCheck.objects.create(
            base_model=base, passed=passed, at=now - timedelta(minutes=minutes)
        )
    found = IsolationCheck.objects.latest_of_each()
    assert [(one.base_model, one.state) for one in found] == [
        ("l", "not checked"),
        ("m", "isolated"),
    ]
