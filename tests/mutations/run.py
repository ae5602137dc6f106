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
from collections.abc import Iterator
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
VERDICT_S = 600.0
POLL_S = 0.2
MAX_TOKENS = 24
LATER = {"receiving", "checking", "uploading", "validating", "probing"}


@dataclass
class Tally:
    """What became of the mutants, and what is wrong: nothing, if all is well."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By the mutant's kind, and `ready` or the code of the refusal or of the first finding."""
    answers: int = 0
    """Of the neighbours, while the mutants came."""
    wrong: list[str] = field(default_factory=list)

    def by_end(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (_, end), count in self.ends.items():
            found[end] += count
        return found


def run(stack: Stack, count: int, seed: int, longest_s: float = math.inf) -> Tally:
    """Upload so many mutants, or as many as are begun in `longest_s`."""
    tally, begun, end = Tally(), 0, time.monotonic() + longest_s
    originals = {name: _read(folder) for name, folder in ADAPTERS.items()}
    luck = random.Random(seed)
    mutants = [mutant(originals, luck) for _ in range(count)]
    engines = [one.pid for one in stack.children("engine")]
    with _neighbours(stack, tally), ThreadPoolExecutor(AT_ONCE) as pool:
        under_way = threading.Semaphore(AT_ONCE)
        for one in mutants:
            under_way.acquire()
            if time.monotonic() > end:
                break
            adapter = f"mutant-{begun % ADAPTER_NAMES}"
            future = pool.submit(_one, stack, adapter, one, tally)
            future.add_done_callback(lambda _: under_way.release())
            begun += 1
    if [one.pid for one in stack.children("engine")] != engines:
        tally.wrong.append("an engine's process ended")
    if sum(tally.ends.values()) != begun:
        tally.wrong.append(f"{begun - sum(tally.ends.values())} mutants came to no end")
    return tally


def _read(folder: Any) -> Files:
    return {name: (folder / name).read_bytes() for name in FILES}


# --- The mutants ---------------------------------------------------------------------------------


def _one(stack: Stack, adapter: str, one: Mutant, tally: Tally) -> None:
    """Upload it, and ask it something if it is ready."""
    try:
        with stack.manager(stack.key(UPLOADER.slug)) as manager:
            end, version = _uploaded(manager, adapter, one)
        if end == "ready":
            with stack.client(stack.key(UPLOADER.slug)) as client:
                asked = client.post("/v1/chat/completions", json=_question(f"{adapter}@{version}"))
            if asked.status_code != 200:
                tally.wrong.append(f"{one.kind}: ready, but answered {asked.text[:300]}")
        tally.ends[one.kind, end] += 1
    except Exception as error:  # whatever it is, it is told
        tally.wrong.append(f"{one.kind}: {error!r}")


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


@contextmanager
def _neighbours(stack: Stack, tally: Tally) -> Iterator[None]:
    """Two tenants who ask all the time inside, each its adapter and the base model."""
    alone = {
        (tenant.slug, model, text): ""
        for tenant in NEIGHBOURS
        for model in (tenant.adapter, MODEL_NAME)
        for text, *_ in QUESTIONS[:3]
    }
    for slug, model, text in alone:
        with stack.client(stack.key(slug)) as client:
            alone[slug, model, text] = _said(client, model, text)
    over = threading.Event()

    def ask(slug: str) -> None:
        with stack.client(stack.key(slug)) as client:
            while not over.is_set():
                for (whose, model, text), expected in alone.items():
                    if whose == slug:
                        said = _said(client, model, text)
                        tally.answers += 1
                        if said != expected:
                            tally.wrong.append(f"{slug}, {model}: {said!r} and not {expected!r}")

    threads = [threading.Thread(target=ask, args=[tenant.slug]) for tenant in NEIGHBOURS]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
