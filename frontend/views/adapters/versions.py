"""One version of an adapter: its checks and their findings, and differences to other versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST

from frontend import bulk
from frontend.formats import duration, rate
from frontend.formats import number as number_of
from frontend.lists import id_in_url
from frontend.pages import refusals_as_messages, tenant_page
from frontend.views.adapters.adapters import EDIT, MAX_CHOICES, READ, engines_by_adapter
from frontend.views.adapters.fingerprints import fingerprint, not_modified
from frontend.views.adapters.traffic import AdapterTraffic, of_versions
from frontend.views.overview.health import later, points, tone
from frontend.views.playground.prompts import scores_of, usable_sets
from tenants.models import LIVE, AdapterVersion, State
from tenants.permissions import Caller, Permission

STAGES = {
    State.UPLOADING: "Its files are being stored.",
    State.VALIDATING: "Its files are checked: format, modules, shapes, rank, finite values.",
    State.PROBING: "An engine loads it and compares its output with the base model's.",
    State.READY: "It can be promoted and called.",
}
UNJUDGED = (State.UPLOADING, State.VALIDATING, State.PROBING)
"""States that a version leaves without a user's action."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step towards `ready`."""

    title: str
    text: str
    done: bool
    current: bool


@tenant_page(READ)
def version(request: HttpRequest, caller: Caller, name: str, number: int) -> HttpResponse:
    """The page of a version."""
    # Before the rest is read: otherwise the page would never learn of a change in between.
    page_fingerprint = fingerprint(caller.tenant, find(caller, name, number))
    if not_modified(request, page_fingerprint):
        return HttpResponseNotModified()
    found = find(caller, name, number)
    context = _context(caller, found) | {
        "known": "known" in request.GET,
        "fingerprint": page_fingerprint,
    }
    return render(request, "adapters/version.html", context)


def find(caller: Caller, name: str, number: int) -> AdapterVersion:
    """The version of the tenant's adapter, else 404."""
    versions = AdapterVersion.objects.filter(adapter__tenant=caller.tenant, adapter__name=name)
    related = ("adapter__tenant", "adapter__base_model", "created_by")
    return get_object_or_404(versions.select_related(*related), number=number)


def _context(caller: Caller, version: AdapterVersion) -> dict[str, Any]:
    readable = version.adapter.versions.exclude(pk=version.pk).exclude(config={})
    others = list(readable.only("number", "state", "adapter")[:MAX_CHOICES])
    aliases = list(version.aliases.values_list("name", flat=True))
    before = ready_before(version, others)
    traffic = of_versions(version.adapter.tenant, filter(None, (version, before)))
    return {
        "version": version,
        "adapter": version.adapter,
        "may_try": caller.may(Permission.USE_PLAYGROUND),
        "before": before,
        "comparison": comparison(version, before, traffic) if version.state == State.READY else [],
        "traffic": traffic[version.pk],
        "aliases": aliases,
        "names": [version.adapter.name + suffix for suffix in _suffixes(version, aliases)],
        "engines": engines_by_adapter().get(version.lora_name, []),
        "stages": stages(State(version.state)) if version.state in UNJUDGED else [],
        "others": [other.number for other in others],
        "trials": list(version.trials.select_related("revision")[:MAX_CHOICES]),
        "unjudged": version.state in UNJUDGED,
        "may_edit": caller.may(EDIT),
    }


def ready_before(
    version: AdapterVersion, others: Sequence[AdapterVersion]
) -> AdapterVersion | None:
    """The newest ready version among `others` (sorted newest first) with a lower number; None if
    there is none."""
    ready = (one for one in others if one.state == State.READY and one.number < version.number)
    return next(ready, None)


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of a version beside that of the version before it. `tone` is `ok` or `bad`."""

    title: str
    now: str
    before: str
    change: str
    tone: str


def comparison(
    version: AdapterVersion,
    before: AdapterVersion | None,
    traffic: Mapping[int, AdapterTraffic],
) -> list[Compared]:
    """The traffic of both over LOOKBACK; empty if there is no version before."""
    if before is None:
        return []
    one, other = traffic[version.pk], traffic[before.pk]
    p50s, p95s = ((getattr(one, name), getattr(other, name)) for name in ("p50_s", "p95_s"))
    return [
        Compared("Requests", number_of(one.requests), number_of(other.requests), "", ""),
        _shares("Errors", one.failed_share, other.failed_share),
        _shares("Malformed answers", one.malformed_share, other.malformed_share),
        _times("TTFT p50", *p50s),
        _times("TTFT p95", *p95s),
    ]


def _shares(title: str, now: float | None, before: float | None) -> Compared:
    change, look = points(now, before), tone(now, before, least=0.0005)
    return Compared(title, rate(now), rate(before), change, look)


def _times(title: str, now: float | None, before: float | None) -> Compared:
    change, look = later(now, before), tone(now, before, least=0.001)
    return Compared(title, duration(now), duration(before), change, look)


def _suffixes(version: AdapterVersion, aliases: list[str]) -> list[str]:
    """The suffixes after the adapter's name that select this version."""
    pointing = ["" if alias == LIVE else f"@{alias}" for alias in aliases]
    return [*sorted(pointing), f"@{version.number}", f"@{version.digest}"]


def stages(here: State) -> list[Stage]:
    """The steps of a version's checks, and how far along it is."""
    order = list(STAGES)
    return [
        Stage(one.label, text, order.index(one) < order.index(here), one == here)
        for one, text in STAGES.items()
    ]


# --- Differences ---------------------------------------------------------------------------------


@tenant_page(READ)
def diff(request: HttpRequest, caller: Caller, name: str, number: int) -> HttpResponse:
    """Differences between this version's configuration and that of `?with=<number>`."""
    new = find(caller, name, number)
    old = find(caller, name, id_in_url(request, "with") or 0)
    ready = {old.state, new.state} == {State.READY}
    may_try = ready and caller.may(Permission.USE_PLAYGROUND)
    context = {
        "version": new,
        "other": old,
        "adapter": new.adapter,
        "changes": changes(old.config, new.config),
        "may_try": may_try,
        "sets": usable_sets(caller) if may_try else [],
        "scores": scores_of(caller, [f"{name}@{one.number}" for one in (old, new)])
        if may_try
        else [],
        "same": sum(1 for key, value in new.config.items() if old.config.get(key) == value),
    }
    return render(request, "adapters/version_diff.html", context)


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Each key that differs, with both values as text; empty where a side lacks the key."""
    keys = sorted(old.keys() | new.keys())
    differing = [key for key in keys if old.get(key) != new.get(key)]
    return [(key, _value_text(old.get(key)), _value_text(new.get(key))) for key in differing]


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


# --- Actions on a version ------------------------------------------------------------------------


@require_POST
@tenant_page(EDIT)
def archive(request: HttpRequest, caller: Caller, name: str, number: int) -> HttpResponse:
    """Take the version out of service."""
    found = find(caller, name, number)
    with refusals_as_messages(request):
        found.archive()
        messages.success(request, f"Version {number} is archived. Engines unload it.")
    return redirect("adapters-version", caller.tenant.slug, name, number)


@require_POST
@tenant_page(EDIT)
def remove(request: HttpRequest, caller: Caller, name: str, number: int) -> HttpResponse:
    """Delete the version with its files."""
    with refusals_as_messages(request):
        find(caller, name, number).remove()
        messages.success(request, f"Version {number} is deleted.")
        return redirect("adapters-one", caller.tenant.slug, name)
    return redirect("adapters-version", caller.tenant.slug, name, number)


@require_POST
@tenant_page(EDIT)
def archive_some(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """Take the chosen versions out of service."""

    def one(id: str) -> None:
        find(caller, name, bulk.number(id)).archive()

    bulk.act(request, one, "version,versions", "archived")
    return redirect("adapters-one", caller.tenant.slug, name)


@require_POST
@tenant_page(EDIT)
def remove_some(request: HttpRequest, caller: Caller, name: str) -> HttpResponse:
    """Delete the chosen versions with their files."""

    def one(id: str) -> None:
        find(caller, name, bulk.number(id)).remove()

    bulk.act(request, one, "version,versions", "deleted")
    return redirect("adapters-one", caller.tenant.slug, name)
