"""The check of isolation: what it finds on fleets that leak, and its own adapters."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.utils import timezone

from inference.content import CONFIG, WEIGHTS
from tenants import isolation
from tenants.adapters.checks import static
from tenants.adapters.checks.scrambled import scrambled
from tenants.adapters.checks.target_modules import TargetModules
from tenants.isolation import QUESTION, ROUNDS, Answer, CannotTell, Installation, NotReady, Voice
from tenants.models import ApiKey, IsolationCheck, Tenant
from tests.adapters.checks.builder import TARGETS
from tests.tenants.making import make_adapter, make_base, make_gateway, make_version

A, B = "a", "b"
VOICES = [Voice(A, "k1", "base"), Voice(B, "k2", "base"), Voice(A, "k1", "x"), Voice(B, "k2", "y")]
BASE_A, BASE_B, ADAPTER_A, ADAPTER_B = VOICES
PREAMBLE = 32
"""Tokens that a chat template puts before every prompt."""


class Fleet:
    """Answers as its model; one prefix cache for each tenant. Each leak can be switched on."""

    def __init__(self, *, shares_cache: bool = False, caches: bool = True) -> None:
        self.swapped: dict[Voice, str] = {}
        """What these answer beside others."""
        self._shares_cache, self._caches = shares_cache, caches
        self._seen: set[tuple[str, str]] = set()
        self._alone: Counter[Voice] = Counter()
        self._lock = threading.Lock()

    def ask(self, voice: Voice, prompt: str) -> Answer:
        with self._lock:
            whose = "" if self._shares_cache else voice.tenant
            cached = PREAMBLE if (whose, "") in self._seen else 0
            cached += 96 if (whose, prompt) in self._seen else 0
            self._seen |= {(whose, ""), (whose, prompt)}
            self._alone[voice] += prompt == QUESTION
            text = f"I am {voice.model}"
            if self._alone[voice] > 1 and prompt == QUESTION:
                text = self.swapped.get(voice, text)
        return Answer(text, cached if self._caches else 0)


def test_a_fleet_that_keeps_tenants_apart_passes() -> None:
    assert isolation.findings(Fleet().ask, VOICES) == []


def test_a_base_model_that_answers_as_an_adapter_is_found() -> None:
    fleet = Fleet()
    fleet.swapped = {BASE_B: "I am x"}
    assert isolation.findings(fleet.ask, VOICES) == [
        f"Beside others, base of b answered as x of a does ({ROUNDS} of {ROUNDS} times)."
    ]


def test_an_answer_that_nobody_gives_alone_is_found() -> None:
    fleet = Fleet()
    fleet.swapped = {ADAPTER_A: "I am!!", ADAPTER_B: "I am x"}
    first, second = isolation.findings(fleet.ask, VOICES)
    assert "x of a answered unlike when it is alone" in first
    assert "y of b answered as x of a does" in second


def test_a_cache_that_tenants_share_is_found() -> None:
    assert isolation.findings(Fleet(shares_cache=True).ask, VOICES) == [
        "96 tokens of a prompt of a were a cache hit for b."
    ]


def test_without_a_cache_or_without_differences_nothing_can_be_told() -> None:
    with pytest.raises(CannotTell, match="did not cache"):
        isolation.findings(Fleet(caches=False).ask, VOICES)
    alike = [*VOICES[:3], Voice(B, "k2", "x")]
    with pytest.raises(CannotTell, match="do not differ"):
        isolation.findings(Fleet().ask, alike)


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


# --- on an installation --------------------------------------------------------------------------


def gateway(answer: httpx.Response | httpx.HTTPError) -> Installation:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return answer

    client = httpx.Client(base_url="http://gw", transport=httpx.MockTransport(handle))
    return Installation(client, client)


def test_an_answer_is_read_and_its_request_noted() -> None:
    body = {
        "choices": [{"message": {"content": "blue"}}],
        "usage": {"prompt_tokens_details": {"cached_tokens": 32}},
    }
    one = gateway(httpx.Response(200, json=body, headers={"x-request-id": "req_1"}))
    assert one.ask(BASE_A, QUESTION) == Answer("blue", 32)
    assert one.ids == ["req_1"]


def test_a_refusal_tells_nothing_of_isolation() -> None:
    with pytest.raises(CannotTell, match="base of a got 429: too many"):
        gateway(httpx.Response(429, text="too many")).ask(BASE_A, QUESTION)
    with pytest.raises(CannotTell, match="The gateway: gone"):
        gateway(httpx.ConnectError("gone")).ask(BASE_A, QUESTION)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("state", "error"), [("validating", NotReady), ("probing", NotReady), ("rejected", CannotTell)]
)
def test_an_adapter_that_is_not_served_yet(state: str, error: type[CannotTell]) -> None:
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
    assert found.state == "not told"
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
def test_it_runs_by_itself_and_forgets_old_results() -> None:
    make_base()
    old = timezone.now() - isolation.KEPT - timedelta(days=1)
    IsolationCheck.objects.create(base_model="base", passed=True, at=old)
    isolation.check_all(0)
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
    assert [(one.base_model, one.state) for one in found] == [("l", "not told"), ("m", "isolated")]
