"""The parts of pages that are updated live, each at a URL of its own.

A gateway tells a page that a topic has changed (`frontend.live.topics`), and the page fetches the
part anew from here: `{"html": ...}`, or rows of requests by their marks. Parts that depend on their
page's query have no URL here; the whole page is fetched instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.http import Http404, HttpRequest, HttpResponseBadRequest, HttpResponseBase, JsonResponse
from django.template.loader import render_to_string
from django.urls import URLPattern, path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from frontend.lists import words_of
from frontend.live.tail import MOST
from frontend.live.topics import TOPICS
from frontend.pages import operator_page, tenant_page
from frontend.views import engines as engines_page
from frontend.views import limits as limits_page
from frontend.views.batches import batches as batches_page
from frontend.views.operate import engines as fleet_page
from frontend.views.operate import overview as installation_page
from frontend.views.operate import requests as all_requests
from frontend.views.operate import rollouts as rollouts_page
from frontend.views.overview import health as health_strip
from frontend.views.overview import overview as overview_page
from frontend.views.requests.requests import RequestFilter, form_of, rows_of
from tenants.listing import Where, mark_of
from tenants.models import Tenant
from tenants.models.usage.listed import Mark
from tenants.permissions import Caller, Permission

Shown = tuple[str, Mapping[str, Any]]
"""A template and its context."""


def engines(request: HttpRequest, caller: Caller) -> Shown:
    return "engines/engines_part.html", engines_page.state(caller.tenant, words_of(request))


def steps(request: HttpRequest, caller: Caller) -> Shown:
    found = overview_page.steps(overview_page.progress(caller.tenant), caller)
    return "overview/steps.html", {"steps": found, "slug": caller.tenant.slug}


def limits(request: HttpRequest, caller: Caller) -> Shown:
    """Limits of the tenant, or of one of its keys or adapters."""
    scope = limits_page.scope_of(caller.tenant, request.GET.get("of", ""))
    if scope is None:
        raise Http404
    return "limits/table.html", limits_page.state(scope)


def health(request: HttpRequest, caller: Caller) -> Shown:
    return "components/health.html", health_strip.of_tenant(caller, health_strip.chosen(request))


def health_of_all(request: HttpRequest) -> Shown:
    return "components/health.html", health_strip.of_all(health_strip.chosen(request))


def fleet(request: HttpRequest) -> Shown:
    return "operate/engines/engines_table.html", fleet_page.fleet(words_of(request))


def figures(request: HttpRequest) -> Shown:
    return "operate/fleet_figures.html", {"fleet": installation_page.fleet()}


def history(request: HttpRequest) -> Shown:
    return "operate/engines/history.html", fleet_page.past(fleet_page.chosen(request))


def rollouts(request: HttpRequest) -> Shown:
    """The rollout that the query names."""
    pk = request.GET.get("rollout", "")
    if not pk.isdecimal() or len(pk) > 18:
        raise Http404
    return "operate/models/rollout_part.html", rollouts_page.state(int(pk))


# --- Requests ------------------------------------------------------------------------------------


def batches(request: HttpRequest, caller: Caller) -> Shown:
    """The batch that the query names."""
    return "batches/batch_part.html", batches_page.state(
        caller.tenant, request.GET.get("batch", "")
    )


def requests(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    """Rows of a tenant's requests that the caller may see."""
    return _rows(request, form_of(request, caller), Where.of(caller), caller.tenant)


def everybodys_requests(request: HttpRequest) -> HttpResponseBase:
    """As `requests`, for the whole installation or the tenant that the filter names."""
    form = all_requests.InstallationFilter(request.GET)
    whose = form.cleaned_data["tenant"] if form.is_valid() else None
    return _rows(request, form, Where.of_tenant(whose), None)


def _rows(
    request: HttpRequest, form: RequestFilter, where: Where, tenant: Tenant | None
) -> HttpResponseBase:
    """The requests with the marks in `ended` that match the filter, oldest first."""
    ended = request.GET.getlist("ended")
    marks = [mark for mark in map(mark_of, ended) if mark is not None]
    if not form.is_valid() or len(ended) > MOST or len(marks) < len(ended):
        return HttpResponseBadRequest()
    return JsonResponse({"rows": list(_rendered(form, where, marks, tenant))})


def _rendered(
    form: RequestFilter, where: Where, marks: Sequence[Mark], tenant: Tenant | None
) -> Iterator[dict[str, str]]:
    for row in reversed(rows_of(where.marked(marks, form.filter), tenant)):
        context = {"row": row, "all_tenants": tenant is None}
        yield {"id": row.event.id, "html": render_to_string("requests/row.html", context)}


# --- URLs ----------------------------------------------------------------------------------------


def _part(show: Callable[..., Shown]) -> Callable[..., HttpResponseBase]:
    def view(request: HttpRequest, *args: Any) -> HttpResponseBase:
        template, context = show(request, *args)
        return JsonResponse({"html": render_to_string(template, context)})

    return view


def _of_tenant(topic: str, view: Callable[..., HttpResponseBase]) -> URLPattern:
    """The URL of a topic's part in a tenant, for callers who may watch it."""
    needs = TOPICS[topic].needs
    assert needs is not None
    guarded = never_cache(require_GET(tenant_page(Permission[needs])(view)))
    return path(topic, guarded, name=f"live-{topic}")


def _of_all(topic: str, view: Callable[..., HttpResponseBase]) -> URLPattern:
    assert TOPICS[topic].whole
    return path(topic, never_cache(require_GET(operator_page(view))), name=f"operate_live-{topic}")


OF_TENANT: Sequence[URLPattern] = [
    _of_tenant("engines", _part(engines)),
    _of_tenant("steps", _part(steps)),
    _of_tenant("limits", _part(limits)),
    _of_tenant("health", _part(health)),
    _of_tenant("batches", _part(batches)),
    _of_tenant("requests", requests),
]
OF_ALL: Sequence[URLPattern] = [
    _of_all("fleet", _part(fleet)),
    _of_all("figures", _part(figures)),
    _of_all("rollouts", _part(rollouts)),
    _of_all("history", _part(history)),
    _of_all("health", _part(health_of_all)),
    _of_all("requests", everybodys_requests),
]
