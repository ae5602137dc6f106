"""What the processes logged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.labs.chaos.judging.facts import Adopted, Life, Moved
from tests.labs.chaos.plan import ENGINES, TRAINER, WORKERS

CRASHES = {
    "request_crashed",
    "job_crashed",
    "journal_failed",
    "usage_not_billable",
    "usage_quarantined",
    "ledger_callback_failed",
    "drain_cut_short",
}
"""Log events that must not occur, whatever is killed."""
MOST_MOVES = 2
"""Of one request."""


def crashes(path: Path, *, may_be_cut: bool = False) -> Iterator[str]:
    """Events that must not occur, and exceptions that were not logged.

    `may_be_cut`: the drains of gateways are short, so they may be cut. Agents do not wait for their
    answers, because what is left moves. Workers and the trainer end with their connection to
    PostgreSQL.
    """
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("Traceback") and path.stem in (*WORKERS, TRAINER):
            continue
        if line.startswith("Traceback"):
            yield f"{path.name}: {line}"
        elif (event := _event(line)).get("event") not in CRASHES:
            continue
        elif event["event"] != "drain_cut_short" or not (may_be_cut or path.stem in ENGINES):
            yield f"{path.name}: {event}"


def degraded(path: Path, lives: Sequence[Life]) -> Iterator[tuple[float, float]]:
    """When this gateway's limits worked without Redis; such a time ends with the process at the
    latest."""
    since: float | None = None
    for line in path.read_text(errors="replace").splitlines():
        event = _event(line)
        if event.get("event") == "limits_degraded":
            since = _time_of(event)
        elif event.get("event") == "limits_restored" and since is not None:
            yield since, _time_of(event)
            since = None
        elif since is not None and (ended := _death_between(lives, since, event)) is not None:
            yield since, ended
            since = None
    if since is not None:
        yield since, float("inf")


def unkept(path: Path) -> Iterator[float]:
    """When this gateway could not reach the answers of idempotency keys; unix times in seconds."""
    for line in path.read_text(errors="replace").splitlines():
        event = _event(line)
        if (event.get("event"), event.get("pool")) == ("database_unavailable", "answers"):
            yield _time_of(event)


def moved(path: Path) -> Iterator[Moved]:
    """The requests of this gateway that continued on another engine."""
    for line in path.read_text(errors="replace").splitlines():
        if (event := _event(line)).get("event") == "request_moved":
            yield Moved(event["request_id"], event["gap_s"])


def adopted(path: Path) -> Iterator[Adopted]:
    """The requests of lost gateways that this one continued."""
    for line in path.read_text(errors="replace").splitlines():
        event = _event(line)
        if event.get("event") == "answer_adopted" and "of" in event:
            yield Adopted(event["of"], event["turn"])


def stayed(path: Path) -> Iterator[str]:
    """The requests of this gateway that had moved as often as allowed."""
    for line in path.read_text(errors="replace").splitlines():
        event = _event(line)
        if event.get("event") == "request_moved_no_more" and event["moves"] >= MOST_MOVES:
            yield event["request_id"]


def _death_between(lives: Sequence[Life], since: float, event: dict[str, Any]) -> float | None:
    """When the process that logged at `since` died, if this event is from a later process."""
    if "timestamp" not in event:
        return None
    deaths = [life.ended for life in lives if life.ended is not None and life.ended > since]
    died_at = min(deaths, default=float("inf"))
    return died_at if died_at < _time_of(event) else None


def _event(line: str) -> dict[str, Any]:
    """A line of a structured log; empty if it is not one, or was torn by a kill."""
    try:
        event = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _time_of(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()
