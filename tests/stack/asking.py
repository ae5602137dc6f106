"""Requests to a running stack, and helpers for their answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from demo import MODEL_NAME

QUESTION = "What is the capital of Peru?"
CHAT = "/v1/chat/completions"
SHORTEST_PAUSE_S = 0.05


def ask(model: str, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "temperature": 0, "max_tokens": 60}
    return body | {"messages": [{"role": "user", "content": QUESTION}]} | fields


def long(model: str = MODEL_NAME) -> dict[str, Any]:
    """The body of a request whose stream takes five seconds on the synthetic engine."""
    return ask(model, stream=True, ignore_eos=True, max_tokens=200)


def chunks(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        if line:
            payload = line.removeprefix("data: ")
            yield payload if payload == "[DONE]" else json.loads(payload)


def until(
    condition: Callable[[], object], seconds: float = 600, *, longest_pause_s: float = 0.8
) -> None:
    """Poll until the condition holds, at growing intervals because each poll keeps a core busy.
    Fails after `seconds`."""
    end, pause_s = time.monotonic() + seconds, SHORTEST_PAUSE_S
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, longest_pause_s)


def serves(url: str) -> bool:
    """Whether this gateway is up, and has an engine."""
    try:
        return httpx.get(f"{url}/fleetz", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def recovered(urls: list[str]) -> None:
    """Wait until each of these gateways serves again."""
    until(lambda: all(map(serves, urls)))


def running(operator: httpx.Client) -> int:
    """The number of requests in the schedulers and queues of all engines."""
    found = operator.get("/api/v1/engines").json()["results"]
    return sum(engine["running"] + engine["waiting"] + engine["queued"] for engine in found)


def text_of(seen: list[Any]) -> str:
    return "".join(
        chunk["choices"][0]["delta"].get("content", "")
        for chunk in seen
        if isinstance(chunk, dict) and chunk.get("choices")
    )
