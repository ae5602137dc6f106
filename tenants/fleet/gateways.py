"""Queries all live gateways, from synchronous code.

They are queried concurrently. One that does not answer within ANSWER_S is left out and reported as
silent; it is queried again after SILENT_S, so that a page waits for it only once. Answers are
cached for FRESH_S, because a page asks more than once, and many pages ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol, TypeVar

import httpx
import msgspec
import structlog
from django.apps import apps

from inference.gateway.measuring.history import Point
from inference.interfaces.directory import Limits
from tenants.fleet.reports import (
    CountedReport,
    GatewayReport,
    ReportedFleet,
    merged,
    merged_counts,
    merged_points,
)

log = structlog.get_logger(__name__)
T = TypeVar("T")

ANSWER_S = 1.0
SILENT_S = 3.0
FRESH_S = 1.0
MAX_ASKED = 16
"""Gateways that are queried at the same time."""


class Drained(msgspec.Struct):
    """A gateway's answer to a request to drain an engine."""

    found: bool


class LiveGateways(Protocol):
    """What pages and the management API query; never raises for gateways that do not answer."""

    def fleet(self) -> ReportedFleet:
        """Every engine, and what it does."""
        ...

    def history(self) -> Sequence[Point]:
        """The engines' load in the last quarter of an hour, the oldest point first."""
        ...

    def used(self, limits: Limits) -> Mapping[str, int]:
        """What counts at present against the limits per minute and on concurrent streams that are
        set, by name; empty if no gateway answers."""
        ...

    def drain(self, engine_id: str) -> bool:
        """Give an engine no new work; False if no gateway that answered has it."""
        ...


def gateways() -> LiveGateways:
    """The instance of this process."""
    found: LiveGateways = apps.get_app_config("tenants").gateways  # type: ignore[attr-defined]
    return found


@dataclass(slots=True)
class _Kept:
    value: Any
    until: float


class HttpGateways:
    """`LiveGateways` over their internal interface."""

    def __init__(
        self,
        token: str,
        alive: Callable[[], Sequence[str]],
        *,
        answer_s: float = ANSWER_S,
        fresh_s: float = FRESH_S,
    ) -> None:
        """`alive` returns the base URLs of the live gateways."""
        self._alive, self._fresh_s = alive, fresh_s
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {token}"},
            timeout=answer_s,
            limits=httpx.Limits(max_connections=4 * MAX_ASKED),
            trust_env=False,
        )
        self._threads = ThreadPoolExecutor(MAX_ASKED, thread_name_prefix="gateways")
        self._lock = Lock()
        self._kept: dict[str, _Kept] = {}
        self._silent: dict[str, float] = {}
        """By URL, the monotonic time until which a gateway that did not answer is not queried."""

    def close(self) -> None:
        """Close the connections and end the threads."""
        self._client.close()
        self._threads.shutdown()

    def fleet(self) -> ReportedFleet:
        """See `LiveGateways.fleet`."""
        return self._fresh("fleet", self._ask_fleet)

    def history(self) -> Sequence[Point]:
        """See `LiveGateways.history`."""
        return self._fresh("history", self._ask_history)

    def used(self, limits: Limits) -> Mapping[str, int]:
        """See `LiveGateways.used`."""
        body = msgspec.json.encode(limits)
        counts, _ = self._ask("/internal/limits", CountedReport, body)
        return merged_counts(counts)

    def drain(self, engine_id: str) -> bool:
        """See `LiveGateways.drain`."""
        body = msgspec.json.encode({"engine": engine_id})
        answers, _ = self._ask("/internal/drain", Drained, body)
        with self._lock:
            self._kept.clear()
        return any(answer.found for answer in answers)

    def _ask_fleet(self) -> ReportedFleet:
        reports, silent = self._ask("/internal/fleet", GatewayReport)
        return merged(reports, silent)

    def _ask_history(self) -> Sequence[Point]:
        histories, _ = self._ask("/internal/history", list[Point])
        return merged_points(histories)

    def _fresh(self, name: str, ask: Callable[[], T]) -> T:
        with self._lock:  # concurrent callers wait for the same answers
            kept = self._kept.get(name)
            if kept is None or kept.until <= time.monotonic():
                kept = self._kept[name] = _Kept(ask(), time.monotonic() + self._fresh_s)
            value: T = kept.value
            return value

    def _ask(
        self, path: str, kind: type[T], body: bytes | None = None
    ) -> tuple[list[T], list[str]]:
        """The gateways' answers, and the URLs of those that did not answer."""
        now, urls = time.monotonic(), list(self._alive())
        asked = [url for url in urls if self._silent.get(url, now) <= now]
        answers = self._threads.map(lambda url: self._ask_one(url + path, kind, body), asked)
        found = dict(zip(asked, answers, strict=True))
        silent = [url for url in urls if found.get(url) is None]
        for url in asked:
            self._silent.pop(url, None)
            if found[url] is None:
                self._silent[url] = time.monotonic() + SILENT_S
        return [answer for answer in found.values() if answer is not None], silent

    def _ask_one(self, url: str, kind: type[T], body: bytes | None) -> T | None:
        try:
            answer = self._client.request("GET" if body is None else "POST", url, content=body)
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=kind)
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            log.warning("gateway_silent", url=url, error=str(error) or type(error).__name__)
            return None
