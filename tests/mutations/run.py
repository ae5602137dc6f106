"""Uploads mutants to a running Lorikeet as one tenant, while two others go on asking.

What must hold: every upload gets a word (a version that ends as ready or rejected, or a 4xx with a
code), a mutant that is ready answers, the engine's process stays the same, and the neighbours are
never refused and say to the last byte what they said before it began.
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
from tests.mutations.mutants import Files, Mutant, mutant
from tests.stack.running import Stack

UPLOADER = TENANTS[2]
NEIGHBOURS = TENANTS[:2]
AT_ONCE = 4
"""Uploads; fewer than a tenant may have under way."""
ADAPTER_NAMES = 6
TOLD_AFTER = 25
VERDICT_S = 600.0
POLL_S = 0.2
MAX_TOKENS = 24
LATER = {"receiving", "checking", "uploading", "validating", "probing"}


@dataclass
class Tally:
    """What became of the mutants, and what is wrong: nothing, if all is well."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By the mutant's kind, and `ready`, the code of the refusal or of the first finding, or
    `nothing`."""
    answers: Counter[str] = field(default_factory=Counter)
    """Of each neighbour, while the mutants came."""
    wrong: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The mutants that came to an end."""
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
    """Upload so many mutants, or as many as are begun in `longest_s`; `tell` is called with the
    tally after each TOLD_AFTER of them. A neighbour waits `pause_s` before it asks again."""
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
    """What became of one: `ready`, a code, or what is wrong with that."""

    kind: str
    how: str
    wrong: str = ""


def _ended(stack: Stack, adapter: str, one: Mutant) -> Ended:
    """Upload it, and ask it something if it is ready."""
    try:
        with stack.manager(stack.key(UPLOADER.slug)) as manager:
            how, version = _uploaded(manager, adapter, one)
        if how != "ready":
            return Ended(one.kind, how)
        with stack.client(stack.key(UPLOADER.slug)) as client:
            asked = client.post("/v1/chat/completions", json=_question(f"{adapter}@{version}"))
        answered = asked.status_code == 200
        return Ended(one.kind, how, "" if answered else f"ready, but answered {asked.text[:300]}")
    except Exception as error:  # whatever it is, it is told
        return Ended(one.kind, "nothing", repr(error))


class _Stuck(Exception):
    """An upload got no word."""


def _uploaded(manager: httpx.Client, adapter: str, one: Mutant) -> tuple[str, int]:
    """How it ended, and its version's number."""
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
"""What a tenant (its slug) was told by a model, asked this."""


def _compare(
    stack: Stack, slug: str, alone: Said, over: threading.Event, tally: Tally, pause_s: float
) -> None:
    """One tenant asks until it is over, and is told what it was told alone."""
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
    except Exception as error:  # whatever it is, it is told
        tally.wrong.append(f"{slug} asks no more: {error!r}")


@contextmanager
def _neighbours(stack: Stack, tally: Tally, pause_s: float) -> Iterator[None]:
    """Two tenants who ask all the time inside, each its adapter and the base model."""
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
