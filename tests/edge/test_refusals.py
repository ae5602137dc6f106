"""Refusals to a client that guesses credentials are delayed more and more; others are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.edge import refusals
from gateway.edge.refusals import SlowRefusals
from inference.pacing import FREE, MAX_WAIT_S, SPACING_S

GUESSER, OTHER = "192.0.2.7", "192.0.2.8"
FEW = int(FREE)


class Door:
    """An application that admits requests with the right word and delays refusals; the fixture
    `waits` freezes its clock."""

    def __init__(self) -> None:
        self._app = SlowRefusals(self._answer, (401, 429))
        self.statuses: list[int] = []

    async def knock(self, word: str, address: str | None = GUESSER, kind: str = "http") -> None:
        client = None if address is None else (address, 1)
        await self._app({"type": kind, "word": word, "client": client}, self._nothing, self._hear)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        status = {"sesame": 200, "again": 429}.get(scope["word"], 401)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await send({"type": "http.response.body", "body": b"x"})

    async def _hear(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])

    async def _nothing(self) -> dict[str, Any]:
        return {"type": "http.request"}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(refusals, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(refusals, "time", SimpleNamespace(monotonic=lambda: 0.0))
    return waited


async def guess(door: Door, times: int, word: str = "abracadabra", **how: Any) -> None:
    for _ in range(times):
        await door.knock(word, **how)


async def test_a_few_mistakes_are_free(waits: list[float]) -> None:
    await guess(door := Door(), FEW)
    assert waits == [] and door.statuses == [401] * FEW


@pytest.mark.parametrize("word", ["abracadabra", "again"])
async def test_continued_guessing_delays_each_answer(waits: list[float], word: str) -> None:
    await guess(door := Door(), FEW + 30, word)
    spaced = [pytest.approx(turn * SPACING_S) for turn in range(1, round(MAX_WAIT_S / SPACING_S))]
    assert waits[: len(spaced)] == spaced
    assert set(waits[len(spaced) + 1 :]) == {MAX_WAIT_S}, "who finds no turn waits longest"
    assert len(door.statuses) == FEW + 30, "every guess is answered"


async def test_accepted_requests_are_never_delayed_by_refusals_of_their_address(
    waits: list[float],
) -> None:
    await guess(door := Door(), 2 * FEW)
    waits.clear()
    await guess(door, 5, "sesame")
    await guess(door, FEW, address=OTHER)
    assert waits == []


async def test_a_whole_ipv6_network_is_one_guesser(waits: list[float]) -> None:
    door = Door()
    for number in range(FEW + 2):
        await guess(door, 1, address=f"2001:db8::{number:x}")
    assert waits, "the rest of such an address is its sender's to choose"


async def test_a_company_with_one_wrong_key_among_many_requests_is_not_slowed(
    waits: list[float],
) -> None:
    door = Door()
    await guess(door, 1)
    for _ in range(100):
        await guess(door, 1)
        await guess(door, 1, "sesame")
    assert waits == []


async def test_what_has_no_address_or_is_a_socket_passes(waits: list[float]) -> None:
    await guess(door := Door(), 2 * FEW, address=None)
    await guess(door, 2 * FEW, kind="websocket")
    assert waits == []
