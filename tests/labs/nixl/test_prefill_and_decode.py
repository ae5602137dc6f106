"""A complete Lorikeet whose prompts are computed by one vLLM and answered by another, over NIXL,
compared with the answers and bills of a plain one (`make nixl`).

The plain engine answers first. Then it is drained, and a prefill and a decode engine of its
revision take over: the tests of this module follow each other.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any, NamedTuple

import httpx
import psycopg
import pytest

from demo import MODEL_NAME, TENANTS, TOOL_PARSER
from tests.stack.asking import CHAT, chunks, running, text_of, until
from tests.stack.engines import another_engine
from tests.stack.furnished import SETTINGS, furnished
from tests.stack.running import Stack, signed_in, up

pytestmark = [
    pytest.mark.stack,
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("nixl") is None, reason="needs `make nixl`"),
]

PREFILL_TOKENS = 100
"""Prompts of this length go to the prefill engine."""
SAME = ("--max-model-len", "2048", "--kv-bytes", "256M")
"""Options of all engines."""
BEFORE = "We talked about many things, and about sums in particular: two and two makes four. "
QUESTIONS = ("What is the capital of Peru?", "What is your refund policy?", "What is 3 plus 4?")
MANY = 38
"""Repetitions of BEFORE that make a prompt of more than a thousand tokens."""


class Told(NamedTuple):
    """An answer, the usage that came with it, its request's id, and the seconds to its first
    text."""

    text: str
    usage: dict[str, Any]
    id: str
    ttft_s: float


Asked = dict[tuple[str, str, str], Told]
"""By tenant, model and question."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    settings = SETTINGS | {
        "LORIKEET_ENGINE_OPTIONS": " ".join(SAME),
        "LORIKEET_PREFILL_TOKENS": str(PREFILL_TOKENS),
    }
    with up(furnished(tmp_path_factory.mktemp("nixl") / "var"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Iterator[httpx.Client]:
    with signed_in(stack) as client:
        yield client


@pytest.fixture(scope="module")
def plain(stack: Stack) -> Asked:
    """The plain engine's answers."""
    return ask_all(stack)


@pytest.fixture(scope="module")
def divided(stack: Stack, operator: httpx.Client, plain: Asked) -> Iterator[dict[str, Any]]:
    """The stack with a prefill and a decode engine in the place of the plain one; the processes of
    both, by name."""
    (first,) = engines(operator)
    with started(stack, "prefill") as prefill, started(stack, "decode") as decode:
        until(lambda: sorted(one["role"] for one in engines(operator)) == ["", "decode", "prefill"])
        assert len({one["pool_revision"] for one in engines(operator)}) == 1
        drained = operator.post("/operate/engines/drain", params={"engine": first["id"]})
        assert drained.is_success, drained.text
        yield {"prefill": prefill, "decode": decode}


def started(stack: Stack, profile: str) -> Any:
    options = ("--engine", "vllm", "--profile", profile, "--tool-parser", TOOL_PARSER, *SAME)
    return another_engine(stack, profile, *options)


def engines(operator: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = operator.get("/api/v1/engines").json()["results"]
    return found


def ask_all(stack: Stack) -> Asked:
    """Every tenant asks the base model and its adapter every question, after a long prompt."""
    return {
        (tenant.slug, model, question): asked(stack, tenant.slug, model, question)
        for tenant in TENANTS
        for model in (MODEL_NAME, tenant.adapter)
        for question in QUESTIONS
    }


def body(model: str, question: str, *, times: int = 8, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": BEFORE * times + question}]
    given = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 32}
    return given | {"stream": True, "stream_options": {"include_usage": True}} | fields


def asked(stack: Stack, tenant: str, model: str, question: str, **fields: Any) -> Told:
    began, first = time.monotonic(), 0.0
    with (
        stack.client(stack.key(tenant)) as client,
        client.stream("POST", CHAT, json=body(model, question, **fields)) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        got = []
        for chunk in chunks(answer):
            got.append(chunk)
            if not first and text_of([chunk]):
                first = time.monotonic() - began
        usage = next(one["usage"] for one in got if isinstance(one, dict) and one.get("usage"))
        return Told(text_of(got), usage, answer.headers["x-request-id"], first)


def prefilled(stack: Stack) -> dict[str, int]:
    """What became of prompts that were sent to prefill engines, by outcome."""
    each = r'prefilled_prompts_total\{.*outcome="(\w+)".*\} (\d+)'
    return {outcome: int(count) for outcome, count in re.findall(each, metrics(stack))}


def metrics(stack: Stack) -> str:
    bearer = {"Authorization": f"Bearer {stack.facts['metrics_token']}"}
    return httpx.get(f"{stack.url}/metrics", headers=bearer, timeout=60).text


def billed(stack: Stack, answers: Collection[Told]) -> dict[str, tuple[Any, ...]]:
    """Attempt, engine, tokens and finish reason of these requests, by their ids, from the ledger,
    once the decode engine has reported all of them."""
    ids = [one.id.removeprefix("req_") for one in answers]
    query = """
    SELECT id, attempt, engine_id, prompt_tokens, cached_tokens, completion_tokens, finish_reason
    FROM tenants_usageevent WHERE id = ANY(%s)
    """
    with psycopg.connect(stack.database_url, autocommit=True) as ledger:

        def rows() -> dict[str, tuple[Any, ...]]:
            return {f"req_{one[0]}": one[1:] for one in ledger.execute(query, [ids])}

        until(lambda: [one[1] for one in rows().values()] == ["decode"] * len(ids))
        return rows()


def ledger_is_exact(stack: Stack) -> None:
    until(lambda: stack.manage("reconcile").returncode == 0)
    checked = stack.manage("reconcile", "--check-rollups")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.usefixtures("divided")
def test_answers_and_bills_are_those_of_the_plain_engine(stack: Stack, plain: Asked) -> None:
    """Base model and adapters of three tenants, with the same long prompts."""
    answers = ask_all(stack)
    assert {key: one.text for key, one in answers.items()} == {
        key: one.text for key, one in plain.items()
    }
    outcomes = prefilled(stack)
    assert outcomes == {"handed_over": outcomes["handed_over"]}
    # A tenant's second and third question find their beginning in the decode engine's cache.
    assert outcomes["handed_over"] >= len(TENANTS) * 2
    rows = billed(stack, answers.values())
    for one in answers.values():
        attempt, _, prompt, cached, output, reason = rows[one.id]
        details = one.usage["prompt_tokens_details"] or {"cached_tokens": 0}
        used = one.usage["prompt_tokens"], details["cached_tokens"], one.usage["completion_tokens"]
        assert (prompt, cached, output) == used
        assert reason in ("stop", "length") and attempt in (1, 2)
    for key, one in answers.items():
        assert one.usage["prompt_tokens"] == plain[key].usage["prompt_tokens"]
        assert one.usage["completion_tokens"] == plain[key].usage["completion_tokens"]
    first = [one for (_, _, question), one in answers.items() if question == QUESTIONS[0]]
    assert not any(rows[one.id][3] for one in first), "no other tenant's or adapter's is cached"
    ledger_is_exact(stack)


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("after_s", [0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
def test_a_client_that_leaves(stack: Stack, operator: httpx.Client, after_s: float) -> None:
    """At whatever moment: in a queue, while the prompt is computed or fetched, or later."""
    slug, question = TENANTS[0].slug, f"Tell me about {after_s} seconds."
    long = body(MODEL_NAME, question, times=MANY, max_tokens=500, ignore_eos=True, stream=False)
    del long["stream_options"]
    patience = httpx.Timeout(60, read=after_s)
    with stack.client(stack.key(slug)) as client, pytest.raises(httpx.ReadTimeout):
        client.post(CHAT, json=long, timeout=patience)
    until(lambda: running(operator) == 0, seconds=60)
    ledger_is_exact(stack)


def test_a_prefill_engine_that_is_killed_is_not_noticed(
    stack: Stack, divided: dict[str, Any], operator: httpx.Client
) -> None:
    """It has prompts when it dies, and no time to say so; then the decode engine does
    everything."""
    slug, question = TENANTS[1].slug, QUESTIONS[0]
    lengths = range(MANY, MANY - 4, -1)
    divided["prefill"].send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(len(lengths)) as pool:
        answers = [
            pool.submit(asked, stack, slug, MODEL_NAME, question, times=length)
            for length in lengths
        ]
        until(lambda: "lorikeet_streams 4" in metrics(stack))
        divided["prefill"].kill()
        got = [answer.result() for answer in answers]
    until(lambda: all(one["role"] != "prefill" for one in engines(operator)))
    outcomes = prefilled(stack)
    assert outcomes["lost"] >= 1, outcomes
    again = [asked(stack, slug, MODEL_NAME, question, times=length) for length in lengths]
    assert [one.text for one in again] == [one.text for one in got]
    assert prefilled(stack) == outcomes, "there is no prefill engine"
    rows = billed(stack, [*got, *again])
    for one in (*got, *again):
        _, _, prompt, _, output, _ = rows[one.id]
        assert (prompt, output) == (one.usage["prompt_tokens"], one.usage["completion_tokens"])
    ledger_is_exact(stack)
