"""The benchmarks' parts: processes, their CPU time, load, figures."""

from __future__ import annotations

import os
import sys
import time

import psutil
import pytest

from tests.frontend.addresses import Page
from tests.labs.bench import pages
from tests.labs.bench.machinery import servers
from tests.labs.bench.machinery.client import Connection, post
from tests.labs.bench.machinery.load import drive
from tests.labs.bench.machinery.processes import Failed, cpu_of, cpu_s, postgres_cpu_s, running
from tests.labs.bench.machinery.report import Figure, Row, take_turns
from tests.labs.bench.sides import lorikeet, peers


def test_cpu_time_is_this_process_own() -> None:
    before, began = cpu_s([psutil.Process()]), time.process_time()
    while time.process_time() - began < 0.1:
        pass
    assert 0.05 < cpu_s([psutil.Process()]) - before


@pytest.mark.skipif("TEST_DATABASE_URL" in os.environ, reason="not embedded")
def test_postgres_has_used_cpu_time() -> None:
    assert postgres_cpu_s() > 0


async def test_a_process_runs_while_it_is_needed() -> None:
    async with peers.server("echo") as echo:
        connection = await Connection.open(echo.address)
        assert (await connection.send(post("/", {"a": 1}))).body == b'{"a": 1}'
        connection.close()
        assert cpu_of(echo.child)() > 0
        assert echo.child.process is not None
        process = psutil.Process(echo.child.process.pid)
    assert not process.is_running()


async def test_a_process_that_ends_shows_its_log() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(Failed, match="no such model"):
        async with running("broken", command, "http://127.0.0.1:9/"):
            pass


async def test_load_counts_every_answer_of_the_mock() -> None:
    async with peers.server("mock") as mock:
        requests = [
            lorikeet.chat(servers.MODEL, f"{i}: hello", max_tokens=5, stream=bool(i % 2))
            for i in range(20)
        ]
        tally = await drive(mock.address, requests, clients=3)
    assert (tally.requests, tally.tokens) == (20, 100)
    assert tally.events == 10 * (1 + 5 + 1 + 1 + 1)  # opening, tokens, finish, usage, [DONE]


def test_figures_compare_round_by_round() -> None:
    ours, theirs = Figure.of([1.0, 2.0, 9.0]), Figure.of([2.0, 2.0, 3.0])
    assert ours.over(theirs).values == (0.5, 1.0, 3.0)
    assert ours.minus(theirs).median == 0.0
    assert str(ours) == "2 (1 to 9)"


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("cpu", Figure.of([0.6]), at_most=0.6), "at most 0.6: met"),
        (Row("cpu", Figure.of([0.61]), at_most=0.6), "at most 0.6: MISSED"),
        (Row("speed", Figure.of([1.0]), at_least=1.0), "at least 1: met"),
        (Row("speed", Figure.of([0.99]), at_least=1.0), "at least 1: MISSED"),
        (Row("speed", Figure.of([0.99])), ""),
    ],
)
def test_a_target_is_judged_by_the_median(row: Row, verdict: str) -> None:
    assert row.verdict == verdict


async def test_sides_take_turns() -> None:
    ran: list[str] = []

    async def side(name: str) -> int:
        ran.append(name)
        return len(ran)

    found = await take_turns(2, {"a": lambda: side("a"), "b": lambda: side("b")})
    assert ran == ["a", "b", "a", "b"]
    assert found == {"a": [1, 3], "b": [2, 4]}


def test_a_page_is_shown_as_the_role_for_which_it_is_slowest() -> None:
    def look(name: str, role: str, ms: float, queries: int) -> pages.Look:
        page = Page(name, f"/{name}?a=1" if name == "usage" else f"/{name}", role)
        return pages.Look(page, queries, [[ms] * 18 + [9 * ms] * 2], [ms / 2])

    found = [look("usage", "admin", 10, 5), look("usage", "owner", 20, 6), look("keys", "v", 1, 13)]
    usage, keys, most = pages.slowest(found)
    assert usage.what == "usage?a=1 (owner): 6 queries, p50 20 ms, CPU 10 ms, p95"
    assert usage.verdict == "at most 100: MISSED" and keys.verdict == "at most 100: met"
    assert (most.figure.median, most.verdict) == (13, "at most 12: MISSED")
