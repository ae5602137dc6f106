"""The engines' current and recent load, and draining an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from frontend.lists import words_of
from frontend.pages import operator_page
from frontend.views.engines import ResidentList, residents, takes_work
from inference.gateway.measuring.history import LoadSample, RequestRate
from tenants.fleet.gateways import gateways
from tenants.models import AdapterVersion

MAX_ID_CHARS = 200


@dataclass(frozen=True, slots=True)
class ListedEngine:
    """One row of the table."""

    engine: dict[str, Any]
    connected_at: datetime
    rate: RequestRate | None
    cache_hits: float | None
    """Share of prompt tokens found in the prefix cache, 0 to 1; None before there are any."""
    resident: ResidentList
    """Adapters loaded on it, last used first."""

    @classmethod
    def of(
        cls, engine: dict[str, Any], rate: RequestRate | None, resident: ResidentList
    ) -> ListedEngine:
        asked = engine["prompt_tokens"]
        hits = engine["cached_tokens"] / asked if asked else None
        return cls(engine, datetime.fromisoformat(engine["connected_at"]), rate, hits, resident)


def fleet(words: str) -> dict[str, Any]:
    """All engines, by id, with the loaded adapters that match the words; those that failed to
    start, and the gateways that did not answer."""
    found = gateways().fleet()
    known = residents(found.engines, AdapterVersion.objects.all())
    rows = [
        ListedEngine.of(
            engine,
            found.rates.get(engine["id"]),
            ResidentList.of(engine["resident_adapters"][::-1], known, words),
        )
        for engine in found.engines
    ]
    failures = [(one, datetime.fromtimestamp(one.at, UTC)) for one in found.start_failures]
    return {"rows": rows, "failures": failures, "silent": found.silent, "words": words}


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A point of the history, of one engine or all. `kv_usage` is that of the fullest engine."""

    at: datetime
    prompt: float | None
    """Tokens per second, as `output`; None if they could not be counted."""
    output: float | None
    running: int
    queued: int
    kv_usage: float

    @classmethod
    def of(cls, at: float, loads: Sequence[LoadSample]) -> HistoryPoint:
        rates = [load.rate for load in loads if load.rate is not None]
        return cls(
            datetime.fromtimestamp(at, UTC),
            sum(rate.prompt for rate in rates) if rates else None,
            sum(rate.output for rate in rates) if rates else None,
            sum(load.running for load in loads),
            sum(load.queued for load in loads),
            max(load.kv_usage for load in loads),
        )


def past(engine: str = "") -> dict[str, Any]:
    """The last 15 minutes of one engine, or of all, oldest point first."""
    points = gateways().history()
    of = [
        (point.at, [load for id, load in point.loads.items() if engine in ("", id)])
        for point in points
    ]
    known = sorted({id for point in points for id in point.loads})
    return {"past": [HistoryPoint.of(at, loads) for at, loads in of if loads], "known": known}


def chosen(request: HttpRequest) -> str:
    """The engine chosen for the charts; empty for all."""
    return request.GET.get("engine", "")[:MAX_ID_CHARS].replace("\0", "")


@require_GET
@operator_page
def engines(request: HttpRequest) -> HttpResponse:
    """The connected engines and their history; `?engine=` selects one for the charts, `?q=`
    filters the adapters loaded on them."""
    engine = chosen(request)
    context = {"chosen": engine} | fleet(words_of(request)) | past(engine)
    return render(request, "operate/engines/engines.html", context)


@require_http_methods(["GET", "POST"])
@operator_page
def drain(request: HttpRequest) -> HttpResponse:
    """Ask for confirmation, then drain one engine."""
    id = request.GET.get("engine", "")
    connected = gateways().fleet().engines
    engine = next((one for one in connected if one["id"] == id), None)
    if engine is None:
        raise Http404
    if request.method == "POST":
        if gateways().drain(id):
            messages.success(request, f"{id} is draining: it takes no new requests.")
        else:
            messages.error(request, f"No gateway connected to {id} answered. Try again.")
        return redirect("operate_engines")
    others = [
        one["id"]
        for one in connected
        if one["base_model"] == engine["base_model"] and one["id"] != id and takes_work(one)
    ]
    return render(request, "operate/engines/drain.html", {"engine": engine, "others": others})
