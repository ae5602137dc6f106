"""Clients that each send one request after another, and count the outcomes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field

import httpx

TOKENS = 30
"""Tokens of each answer, at 5 a second: long, slow answers leave the machine to the processes that
start and stop."""
QUESTION = "Tell me a long story. " * 20
"""The prompt, which the synthetic engine repeats as its answer."""
PAUSE_S = 0.2
"""Pause after a failure; without it, a client would count a single cause a hundred times."""


@dataclass
class Load:
    """A variable number of clients, each with its own connections."""

    url: str
    key: str
    model: str
    answered: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    """Prompt and completion tokens, as reported to the clients."""
    failures: Counter[str] = field(default_factory=Counter)
    _clients: list[asyncio.Task[None]] = field(default_factory=list)
    _wanted: int = 0

    def want(self, clients: int) -> None:
        """Set the number of clients; surplus ones end after their current request."""
        self._wanted = clients
        self._clients = [one for one in self._clients if not one.done()]
        for number in range(len(self._clients), clients):
            self._clients.append(asyncio.create_task(self._ask_on(number)))

    async def stop(self) -> None:
        """End all clients after their last answers."""
        self.want(0)
        await asyncio.gather(*self._clients)

    async def _ask_on(self, number: int) -> None:
        while number < self._wanted:
            failure = await self.ask()
            if failure:
                self.failures[failure] += 1
                await asyncio.sleep(PAUSE_S)

    async def ask(self, tokens: int = TOKENS) -> str:
        """Send one request over a new connection; returns what went wrong, empty if nothing did."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            async with (
                self.client() as client,
                client.stream("POST", "/v1/chat/completions", json=body) as answer,
            ):
                if answer.status_code != httpx.codes.OK:
                    told = json.loads(await answer.aread())
                    return str(told["error"]["code"])
                return self._judged([line async for line in answer.aiter_lines()])
        except httpx.HTTPError as error:
            return type(error).__name__

    def client(self) -> httpx.AsyncClient:
        """A new client with the key."""
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, trust_env=False, verify=False, timeout=120
        )

    def _judged(self, lines: list[str]) -> str:
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        if not events or events[-1] != "[DONE]":
            error = next((e for e in map(_error, events) if e), "")
            return error or "cut off"
        usage = json.loads(events[-2])["usage"]
        self.answered += 1
        for kind in ("prompt_tokens", "completion_tokens"):
            self.tokens[kind] += usage[kind]
        return ""


def _error(event: str) -> str:
    error = json.loads(event).get("error") if event != "[DONE]" else None
    return str(error["code"]) if error else ""
