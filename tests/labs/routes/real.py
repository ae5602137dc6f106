"""`python -m tests.labs.routes.real [--rows N] [--fresh N] [--seed N]`: routes between the two base
models of the demo on a complete Lorikeet with real vLLM, from an eval to the ledger.

1. Both models answer the rows of an eval, by runs over the API.
2. Routes between them are made, one of each method, and fitted by the worker.
3. Questions that are not in the eval are asked of either model and of each route that is on, every
   other one of a classifier's as a stream. Whether an answer is right is counted here; what it cost
   is read from its receipt, and compared with the ledger's sums.

That is done for each set of questions (`facts`).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import psycopg
from openai import OpenAI

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
from demo import MODEL_NAME, TENANTS, smollm2  # noqa: E402
from tenants.evals.comparing import PairedDifference, mean_difference  # noqa: E402
from tests.labs.routes.facts import FactQuestion, FactSet, capitals, facts  # noqa: E402
from tests.stack.asking import until  # noqa: E402
from tests.stack.engines import another_engine  # noqa: E402
from tests.stack.rolling import api  # noqa: E402
from tests.stack.running import Stack, signed_in, up  # noqa: E402

SMALL, LARGE = MODEL_NAME, smollm2.MODEL_NAME
METHODS = "classifier", "cascade"
SETS = {"facts": facts, "capitals": capitals}
MARGIN = 0.05
PRICE = {"prompt": 1_000_000, "cached_prompt": 250_000, "output": 4_000_000}
"""Of the large model, in micro-units per million tokens: ten times that of the small one
(`gateway.local.seed`)."""
ENGINE = "--max-model-len", "1024", "--kv-bytes", "64M"
AT_ONCE = 8
MAX_TOKENS = 24
RUN_S = 3000.0
PICO = 10**12


@dataclass(frozen=True, slots=True)
class FactAnswer:
    """Who answered, whether it is right, and what it cost in pico-units as if no prompt had been
    cached: the same question is asked several times here."""

    model: str
    is_right: bool
    cost: int


def main() -> None:
    """Run, and print what the fit reported and what was measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.labs.routes.real", description=__doc__)
    parser.add_argument("--rows", type=int, default=440, help="of the eval (%(default)s)")
    parser.add_argument("--fresh", type=int, default=200, help="further questions (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--only", choices=[*SETS], help="one of the sets of questions")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    drawing = random.Random(options.seed)
    made = [SETS[options.only]] if options.only else [*SETS.values()]
    sets = [make(drawing, options.rows, options.fresh) for make in made]
    with tempfile.TemporaryDirectory(prefix="lorikeet-routes-") as folder:
        large = _large_model(Path(folder))
        with (
            up(Path(folder) / "var", LORIKEET_ENGINE_OPTIONS=" ".join(ENGINE)) as stack,
            another_engine(stack, "large", "--engine", "vllm", *ENGINE, model=(LARGE, large)),
        ):
            _measure(stack, sets)


def _large_model(folder: Path) -> Path:
    """Where `make up` keeps it, or fetched anew."""
    found = smollm2.folder_in(ROOT / "var")
    if not found.exists():
        from demo.smollm2 import base

        found = folder / LARGE
        base.make(found)
    return found


def _measure(stack: Stack, sets: Sequence[FactSet]) -> None:
    key = stack.key(TENANTS[0].slug)
    client = OpenAI(base_url=stack.facts["base_url"], api_key=key, max_retries=0, timeout=600)
    until(lambda: LARGE in {one.id for one in client.models.list()})
    with signed_in(stack) as operator:
        api(operator, "POST", "prices", {"base_model": LARGE, **PRICE})
    for asked in sets:
        print(f"\n{asked.name}: {len(asked.rows)} rows, {len(asked.fresh)} questions", flush=True)
        eval = _evaluated(client, asked.rows)
        with stack.manager(key) as manager:
            routes = [_fitted(manager, f"{asked.name}-{one}", one, eval) for one in METHODS]
        on = [route["name"] for route in routes if route["is_on"]]
        with ThreadPoolExecutor(AT_ONCE) as pool, stack.client(key) as ledger:
            answers = {
                model: list(pool.map(partial(_ask, client, ledger, model), count(), asked.fresh))
                for model in (SMALL, LARGE, *on)
            }
        for route in on:
            answers[route] = _with_firsts(answers[route], answers[SMALL], route)
            _compare(stack, route, answers[route])
        _tell(asked.fresh, answers)


def _evaluated(client: OpenAI, rows: Sequence[FactQuestion]) -> str:
    """An eval of these questions, with a completed run on each model; its id."""
    criteria: list[Any] = [
        {"type": "string_check", "name": "right", "operation": "ilike",
         "input": "{{ sample.output_text }}", "reference": "{{ item.answer }}"},
        {"type": "logprob", "name": "sure", "pass_threshold": -1000},
    ]  # fmt: skip
    schema: dict[str, object] = {"type": "object", "required": ["question", "answer"]}
    eval = client.evals.create(
        name="Facts",
        data_source_config={"type": "custom", "item_schema": schema},
        testing_criteria=criteria,
    )
    content = [{"item": {"question": row.text, "answer": row.answer}} for row in rows]
    for model in (SMALL, LARGE):
        source: Any = {
            "type": "completions", "model": model,
            "source": {"type": "file_content", "content": content},
            "input_messages": {
                "type": "template", "template": [{"role": "user", "content": "{{ item.question }}"}]
            },
            "sampling_params": {"temperature": 0, "max_completion_tokens": MAX_TOKENS},
        }  # fmt: skip
        began = time.monotonic()
        run: Any = client.evals.runs.create(eval.id, data_source=source)
        while run.status in ("queued", "in_progress"):
            assert time.monotonic() - began < RUN_S, run
            time.sleep(1)
            run = client.evals.runs.retrieve(run.id, eval_id=eval.id)
        assert run.status == "completed", run
        took_s = time.monotonic() - began
        print(f"run on {model}: {run.result_counts}, {took_s:.0f} s", flush=True)
    return eval.id


def _fitted(manager: httpx.Client, name: str, method: str, eval: str) -> Any:
    """A route, as it is after its fit."""
    body = {"name": name, "options": [SMALL, LARGE], "method": method, "margin": MARGIN}
    manager.post("/api/v1/routes", json=body).raise_for_status()
    path = f"/api/v1/routes/{name}"
    manager.post(f"{path}/fit", json={"eval": eval}).raise_for_status()
    until(lambda: not manager.get(path).json()["is_being_fitted"])
    route = manager.get(path).json()
    print(f"{name} is {'on' if route['is_on'] else 'off'}: {route['reason']}", flush=True)
    return route


def _ask(
    client: OpenAI, ledger: httpx.Client, model: str, number: int, asked: FactQuestion
) -> FactAnswer:
    """Ask the question, an odd one of the route as a stream, and read its receipt."""
    streams = model.endswith(METHODS[0]) and number % 2 == 1
    answer: Any = client.chat.completions.with_raw_response.create(
        model=model, temperature=0, max_completion_tokens=MAX_TOKENS, stream=streams,
        messages=[{"role": "user", "content": asked.text}],
    )  # fmt: skip
    parsed: Any = answer.parse()
    if streams:
        chunks = [*parsed]
        by = chunks[0].model
        said = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    else:
        by, said = parsed.model, parsed.choices[0].message.content or ""
    receipt = _receipt(ledger, answer.headers["x-request-id"])
    assert receipt["base_model"] == by, (receipt, by)
    cost = receipt["prompt_tokens"] * receipt["prompt_price"]
    cost += receipt["completion_tokens"] * receipt["output_price"]
    return FactAnswer(by, asked.is_answered_by(said), cost)


def _receipt(ledger: httpx.Client, id: str) -> Any:
    """The request's receipt, once it is in the ledger."""
    found: list[Any] = []

    def is_there() -> bool:
        answer = ledger.get(f"/v1/usage/receipts/{id}")
        if answer.is_success:
            found.append(answer.json()["receipt"])
        return bool(found)

    until(is_there)
    return found[0]


def _with_firsts(
    answers: Sequence[FactAnswer], small: Sequence[FactAnswer], route: str
) -> list[FactAnswer]:
    """With the cost of the first answers of a cascade that did not stay: what the small model alone
    cost, whose answers are greedy."""
    if not route.endswith(METHODS[1]):
        return [*answers]
    return [
        replace(one, cost=one.cost + first.cost) if one.model == LARGE else one
        for one, first in zip(answers, small, strict=True)
    ]


def _compare(stack: Stack, route: str, answers: Sequence[FactAnswer]) -> None:
    """Check that the ledger's sum of the route is that of the answers."""
    query = """
        SELECT coalesce(sum(prompt_tokens * prompt_price + completion_tokens * output_price), 0)
        FROM tenants_usageevent WHERE route = %s
    """
    expected = sum(one.cost for one in answers)
    with psycopg.connect(stack.database_url, autocommit=True) as ledger:
        billed = 0

        def is_settled() -> bool:
            nonlocal billed
            (billed,) = ledger.execute(query, [route]).fetchone() or (0,)
            return bool(abs(billed - expected) < expected / 100)

        until(is_settled, 60)
        print(f"{route}: the ledger has {billed} pico-units, the answers {expected}", flush=True)


def _tell(fresh: Sequence[FactQuestion], answers: Mapping[str, Sequence[FactAnswer]]) -> None:
    """The table, and for each route the differences with their intervals."""
    print("\n| answered by | right | easy | hard | small | 1,000 answers cost |")
    print("| --- | --- | --- | --- | --- | --- |")
    controls = {name: _control(answers, name) for name in answers if name not in (SMALL, LARGE)}
    for name, given in answers.items():
        right = [float(one.is_right) for one in given]
        share = fmean(one.model == SMALL for one in given)
        print(_row(name, fresh, right, share, [one.cost for one in given]))
        if name in controls:
            print(_row("the same shares at random", fresh, controls[name], share, None))
    singles = [answers[SMALL], answers[LARGE]]
    best = max(singles, key=lambda given: sum(one.is_right for one in given))
    mean = fmean(one.cost for one in best)
    for name, control in controls.items():
        right, given = [float(one.is_right) for one in answers[name]], answers[name]
        print(f"\n{name}, with 95 % intervals")
        print(
            "  right, to the best model, points:",
            _interval([one.is_right for one in best], right, 100),
        )
        costs = [one.cost for one in best], [one.cost for one in given]
        print("  cost, to the best model, %:", _interval(*costs, 100 / mean))
        print("  right, to random, points:", _interval(control, right, 100), flush=True)


def _control(answers: Mapping[str, Sequence[FactAnswer]], route: str) -> list[float]:
    """How likely each answer is right with the route's shares at random."""
    share = fmean(one.model == SMALL for one in answers[route])
    pairs = zip(answers[SMALL], answers[LARGE], strict=True)
    return [share * one.is_right + (1 - share) * other.is_right for one, other in pairs]


def _row(
    name: str,
    fresh: Sequence[FactQuestion],
    right: Sequence[float],
    share: float,
    cost: Sequence[float] | None,
) -> str:
    shares = [
        fmean(one for one, asked in zip(right, fresh, strict=True) if asked.hard in kinds)
        for kinds in ({False, True}, {False}, {True})
    ]
    told = " | ".join(f"{100 * one:.1f} %" for one in (*shares, share))
    return f"| {name} | {told} | {'' if cost is None else f'{1000 * fmean(cost) / PICO:.6f}'} |"


def _interval(one: Sequence[float], other: Sequence[float], scale: float) -> str:
    pairs = [(float(a), float(b)) for a, b in zip(one, other, strict=True)]
    found: PairedDifference | None = mean_difference(pairs)
    assert found is not None
    ends = f"{scale * found.low:+.1f} to {scale * found.high:+.1f}"
    return f"{scale * found.value:+.1f} ({ends})"


if __name__ == "__main__":
    main()
