"""Uploads mutants to a running Lorikeet as one tenant, while two others keep asking.

What must hold: every upload gets a verdict (a version that becomes ready or rejected, or a 4xx with
a code), a mutant that is ready answers, the engine's process stays the same, and the neighbours are
never refused and get byte for byte the answers that they got before.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from demo import ADAPTERS, MODEL_NAME, QUESTIONS, TENANTS
from inference.content import FILES
from tests.labs.mutations.mutants import Files, Mutant, mutant
from tests.stack.running import Stack

UPLOADER = TENANTS[2]
NEIGHBOURS = TENANTS[:2]
AT_ONCE = 4
"""Parallel uploads; fewer than a tenant may have."""
ADAPTER_NAMES = 6
TOLD_AFTER = 25
VERDICT_S = 600.0
POLL_S = 0.2
MAX_TOKENS = 24
LATER = {"receiving", "checking", "uploading", "validating", "probing"}


@dataclass
class Tally:
    """What became of the mutants, and what is wrong; `wrong` is empty if all is well."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By the mutant's kind and its end: `ready`, the code of the refusal or first finding, or
    `nothing`."""
    answers: Counter[str] = field(default_factory=Counter)
    """By neighbour: answers while mutants were uploaded."""
    wrong: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of mutants that came to an end."""
        return self.ends.total()

    def by_end(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (_, end), count in self.ends.items():
            found[end] += count
        return found


def run(
    stack: Stack,
    count: int,
    seed: int,
    longest_s: float = math.inf,
    tell: Callable[[Tally], None] = lambda tally: None,
    pause_s: float = 0.0,
) -> Tally:
    """Upload `count` mutants, or as many as can be begun within `longest_s`. `tell` is called with
    the tally after each TOLD_AFTER of them. A neighbour waits `pause_s` between its questions."""
    tally, end = Tally(), time.monotonic() + longest_s
    originals = {name: _read(folder) for name, folder in ADAPTERS.items()}
    engines = [one.pid for one in stack.children("engine")]

    def upload(number: int) -> Ended | None:
        if time.monotonic() > end:
            return None
        one = mutant(originals, random.Random(f"{seed}-{number}"))
        return _ended(stack, f"mutant-{number % ADAPTER_NAMES}", one)

    with _neighbours(stack, tally, pause_s), ThreadPoolExecutor(AT_ONCE) as pool:
        for ended in filter(None, pool.map(upload, range(count))):
            tally.ends[ended.kind, ended.how] += 1
            if ended.wrong:
                tally.wrong.append(f"{ended.kind}: {ended.wrong}")
            if tally.count % TOLD_AFTER == 0:
                tell(tally)
    if [one.pid for one in stack.children("engine")] != engines:
        tally.wrong.append("an engine's process ended")
    return tally


def _read(folder: Any) -> Files:
    return {name: (folder / name).read_bytes() for name in FILES}


# --- The mutants ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """What became of a mutant: `ready` or a code in `how`, and what is wrong with that."""

    kind: str
    how: str
    wrong: str = ""


def _ended(stack: Stack, adapter: str, one: Mutant) -> Ended:
    """Upload a mutant, and ask it something if it is ready."""
    try:
        with stack.manager(stack.key(UPLOADER.slug)) as manager:
            how, version = _uploaded(manager, adapter, one)
        if how != "ready":
            return Ended(one.kind, how)
        with stack.client(stack.key(UPLOADER.slug)) as client:
            asked = client.post("/v1/chat/completions", json=_question(f"{adapter}@{version}"))
        answered = asked.status_code == 200
        return Ended(one.kind, how, "" if answered else f"ready, but answered {asked.text[:300]}")
    except Exception as error:  # reported, whatever it is
        return Ended(one.kind, "nothing", repr(error))


class _Stuck(Exception):
    """An upload got no verdict."""


def _uploaded(manager: httpx.Client, adapter: str, one: Mutant) -> tuple[str, int]:
    """How the upload ended, and the version's number."""
    path = f"/api/v1/adapters/{adapter}/versions"
    sent = [("files", (name, data)) for name, data in one.files.items()]
    answer = manager.post(path, files=sent)
    end = time.monotonic() + VERDICT_S
    while True:
        if 400 <= answer.status_code < 500:
            return str(answer.json()["code"]), 0
        if answer.status_code >= 300:
            raise _Stuck(f"{answer.status_code}: {answer.text[:300]}")
        told = answer.json()
        if told["state"] == "refused":
            return str(told["problem"]["code"]), 0
        told = told.get("version") or told
        if told["state"] not in LATER:
            break
        if time.monotonic() > end:
            raise _Stuck(f"still {told['state']}: {told}")
        time.sleep(POLL_S)
        where = f"{path}/{told['number']}" if "number" in told else f"/api/v1/uploads/{told['id']}"
        answer = manager.get(where)
    if told["state"] == "ready":
        return "ready", told["number"]
    return str(told["report"]["findings"][0]["code"]), told["number"]


# --- The neighbours ------------------------------------------------------------------------------


def _question(model: str, text: str = QUESTIONS[0][0]) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }


def _said(client: httpx.Client, model: str, text: str) -> str:
    answer = client.post("/v1/chat/completions", json=_question(model, text))
    if answer.status_code != 200:
        return f"{answer.status_code}: {answer.text[:300]}"
    choice = answer.json()["choices"][0]
    return f"{choice['finish_reason']}: {choice['message']['content']}"


Said = dict[tuple[str, str, str], str]
"""The answers by tenant (its slug), model and question."""


def _compare(
    stack: Stack, slug: str, alone: Said, over: threading.Event, tally: Tally, pause_s: float
) -> None:
    """Repeat one tenant's questions until `over` is set, and compare the answers with those it got
    alone."""
    own = [(model, text, said) for (whose, model, text), said in alone.items() if whose == slug]
    try:
        with stack.client(stack.key(slug)) as client:
            while not over.is_set():
                for model, text, expected in own:
                    said = _said(client, model, text)
                    tally.answers[slug] += 1
                    over.wait(pause_s)
                    if said != expected:
                        tally.wrong.append(f"{slug}, {model}: {said!r} and not {expected!r}")
    except Exception as error:  # reported, whatever it is
        tally.wrong.append(f"{slug} asks no more: {error!r}")


@contextmanager
def _neighbours(stack: Stack, tally: Tally, pause_s: float) -> Iterator[None]:
    """Two tenants keep asking during the block, each its adapter and the base model."""
    alone: Said = {
        (tenant.slug, model, text): ""
        for tenant in NEIGHBOURS
        for model in (tenant.adapter, MODEL_NAME)
        for text, *_ in QUESTIONS[:3]
    }
    for slug, model, text in alone:
        with stack.client(stack.key(slug)) as client:
            alone[slug, model, text] = _said(client, model, text)
    over = threading.Event()
    threads = [
        threading.Thread(target=_compare, args=[stack, tenant.slug, alone, over, tally, pause_s])
        for tenant in NEIGHBOURS
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
