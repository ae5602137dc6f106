"""What is read from the processes' logs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tests.labs.chaos.judging.facts import Adopted, Life, Moved
from tests.labs.chaos.judging.sources import logs
from tests.labs.chaos.plan import ENGINES


def line(event: str, at: float, **fields: object) -> str:
    stamp = datetime.fromtimestamp(at, UTC).isoformat()
    return msgspec.json.encode({"event": event, "timestamp": stamp} | fields).decode()


def log(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "gateway-0.log"
    path.write_text("\n".join(lines))
    return path


def test_crashes(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        line("request", 1.0),
        line("request_crashed", 2.0, request_id="r1"),
        "Traceback (most recent call last):",
        "ValueError: something",
        line("drain_cut_short", 3.0, requests=1),
        '{"event": "torn by a ki',
    )
    first, second, leaked = logs.crashes(path)
    assert "drain_cut_short" in leaked
    assert "request_crashed" in first
    assert "r1" in first
    assert "Traceback" in second


@pytest.mark.parametrize("engine", ENGINES)
def test_an_agent_need_not_wait_for_its_answers(tmp_path: Path, engine: str) -> None:
    path = tmp_path / f"{engine}.log"
    path.write_text(line("drain_cut_short", 3.0, requests=1, moving=1))
    assert not list(logs.crashes(path))


def test_a_drain_cut_short_is_no_crash_if_gateways_drain_briefly(tmp_path: Path) -> None:
    path = log(tmp_path, line("drain_cut_short", 3.0, requests=1), line("job_crashed", 4.0))
    (crash,) = logs.crashes(path, may_be_cut=True)
    assert "job_crashed" in crash


def test_what_was_adopted(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        line("answer_adopted", 5.0, request_id="r2", of="r1", turn=2),
        line("answer_adopted", 5.0, request_id="r1", gateway="http://a", attempt=1001),
    )
    assert list(logs.adopted(path)) == [Adopted("r1", 2)], "not what an engine says of it"


def test_what_moved(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        line("request_moved", 5.0, request_id="r1", gap_s=0.25),
        line("request_moved_no_more", 6.5, request_id="r2", moves=2),
        line("request_moved_no_more", 7.5, request_id="r3", moves=1),
    )
    assert list(logs.moved(path)) == [Moved("r1", 0.25)]
    assert list(logs.stayed(path)) == ["r2"]


def test_times_without_answers_of_idempotency_keys(tmp_path: Path) -> None:
    path = log(
        tmp_path,
        line("database_unavailable", 5.0, pool="limits"),
        line("database_unavailable", 6.5, pool="answers"),
        line("request", 7.0),
    )
    assert list(logs.unkept(path)) == [6.5]


def test_times_without_redis(tmp_path: Path) -> None:
    lives = [Life("gateway-0", "gateway", 1, 0.0, 1.0, 30.0), Life("g", "gateway", 2, 31.0, 32.0)]
    path = log(
        tmp_path,
        line("limits_restored", 5.0),
        line("limits_degraded", 10.0),
        line("limits_restored", 12.0),
        line("limits_degraded", 20.0),
        line("request", 25.0),
        line("gateway started again", 33.0),
        line("limits_degraded", 40.0),
    )
    assert list(logs.degraded(path, lives)) == [(10, 12), (20, 30), (40, float("inf"))]
