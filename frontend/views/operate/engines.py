"""What every engine does at the moment, and how one is taken out of service."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from frontend import process
from frontend.live.history import HISTORY, Rate
from frontend.pages import operator_page
from tenants.api import engines as connected


@dataclass(frozen=True, slots=True)
class Row:
    """One engine, as the table shows it."""

    engine: dict[str, Any]
    connected_at: datetime
    rate: Rate | None
    cache_hits: float | None
    """Share of the prompt tokens that the prefix cache held, 0 to 1; None before there are any."""
    held: list[tuple[str, str]]
    """Adapters in its slots with their digests, the last used first."""

    @classmethod
    def of(cls, engine: dict[str, Any], rate: Rate | None) -> Row:
        asked = engine["prompt_tokens"]
        hits = engine["cached_tokens"] / asked if asked else None
        names = [name.rpartition("@") for name in reversed(engine["resident_adapters"])]
        held = [(name, digest) for name, _, digest in names]
        return cls(engine, datetime.fromisoformat(engine["connected_at"]), rate, hits, held)


def fleet() -> list[Row]:
    """Every engine that this gateway has, by id."""
    found = sorted(connected.snapshot_source(), key=lambda engine: str(engine["id"]))
    rates = HISTORY.rates()
    return [Row.of(engine, rates.get(engine["id"])) for engine in found]


@require_GET
@operator_page
def engines(request: HttpRequest) -> HttpResponse:
    return render(request, "operate/engines.html", {"rows": fleet()})


@require_http_methods(["GET", "POST"])
@operator_page
def drain(request: HttpRequest) -> HttpResponse:
    """Ask whether, then take one engine out of service."""
    id = request.GET.get("engine", "")
    engine = next((one for one in connected.snapshot_source() if one["id"] == id), None)
    if engine is None:
        raise Http404
    if request.method == "POST":
        process.drain_engine(id)
        messages.success(request, f"{id} takes no new requests from now on.")
        return redirect("operate_engines")
    others = [
        one["id"]
        for one in connected.snapshot_source()
        if one["base_model"] == engine["base_model"] and one["id"] != id and not one["draining"]
    ]
    return render(request, "operate/drain.html", {"engine": engine, "others": others})
