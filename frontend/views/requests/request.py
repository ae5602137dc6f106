"""One request: its timeline, cost and receipt, or why it was refused; and what was asked and
answered, where that is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST
from django.views.decorators.vary import vary_on_headers

from frontend.causes import cause, remedy
from frontend.formats import exact_money
from frontend.pages import tenant_page
from frontend.playground.reopened import reopened
from frontend.views.playground.playground import show
from frontend.views.requests import annotating
from frontend.views.requests.requests import look_of
from frontend.views.requests.timeline import SCALE, Timeline
from inference.errors import ApiKeyRevoked
from inference.gateway.lines.seals import batch_of, number_of
from tenants.billing.receipts import describe, signer
from tenants.content import reading
from tenants.content.reading import ContentExchange
from tenants.content.turns import turns_of
from tenants.limits.kinds import KINDS
from tenants.listing import Listed, ListEntry
from tenants.models import ApiKey, AuditEntry, RefusedRequest, UsageEvent
from tenants.models.audit import actor_of
from tenants.models.usage.listed import Outcome, may_be_unrecorded
from tenants.permissions import Caller, Permission

SOURCES = {
    "api": "API",
    "playground": "Playground",
    "batch": "Batch",
    "background": "API, in the background",
    "shadow": "Copy for a shadow",
}
"""Where a request came from, by `RefusedRequest.surface`."""
SPOKEN = ("prompt", "input", "system", "instructions")
"""Parameters that are texts of a speaker, not settings."""


@dataclass(frozen=True, slots=True)
class RequestCharge:
    """Tokens of one kind, their price in micro-units per million, and what they cost, exactly."""

    name: str
    tokens: int
    price: int

    @property
    def cost(self) -> str:
        return exact_money(self.tokens * self.price)


@require_GET
@vary_on_headers("HX-Request")
@tenant_page(Permission.READ_OWN_USAGE)
def request(request: HttpRequest, caller: Caller, request_id: str) -> HttpResponse:
    """The whole page, or for htmx the content of the drawer. For a request that may not be recorded
    yet, a page that reloads itself."""
    return _page(request, caller, request_id, {})


@require_POST
@never_cache
@vary_on_headers("HX-Request")
@tenant_page(Permission.READ_CONTENT)
def content(request: HttpRequest, caller: Caller, request_id: str) -> HttpResponse:
    """The stored prompt and answers; the audit log records who read them."""
    found, exchange = _read(request, caller, request_id)
    shown: dict[str, Any] = {"exchange": exchange, "unreadable": exchange is None}
    if exchange is not None:
        shown["turns"], shown["settings"] = turns_of(exchange.request), settings_of(exchange)
    if exchange is not None and caller.may(Permission.USE_PLAYGROUND):
        shown["may_open"] = reopened(exchange.request, None) is not None
    if "HX-Request" in request.headers:
        shown |= {"caller": caller, "id": found.pk}
        return render(request, "requests/content.html", shown)
    return _page(request, caller, request_id, shown)


@require_POST
@never_cache
@tenant_page(Permission.READ_CONTENT)
def reopen(request: HttpRequest, caller: Caller, request_id: str) -> HttpResponse:
    """The playground with the stored prompt and answer; the audit log records who read them."""
    caller.require(Permission.USE_PLAYGROUND)
    _, exchange = _read(request, caller, request_id)
    if exchange is None:
        raise Http404
    found = reopened(exchange.request, next(iter(exchange.answers), None))
    if found is None:
        raise Http404
    panes = [msgspec.to_builtins(found.pane)]
    return show(request, caller, panes=panes, notice=found.notice)


def _read(
    request: HttpRequest, caller: Caller, request_id: str
) -> tuple[UsageEvent | RefusedRequest, ContentExchange | None]:
    """A request with stored content, and that content; None if it cannot be read."""
    event = find(caller, request_id)
    error = None if event else caller.refused().named(request_id).first()
    found = event or error
    if found is None or not reading.is_kept(caller.tenant, found.pk):
        raise Http404
    actor = actor_of(request)
    assert actor is not None
    AuditEntry.objects.note(actor, caller.tenant, "read", f"req_{found.pk}", kind="content")
    return found, reading.read(caller.tenant, found.pk)


def settings_of(exchange: ContentExchange) -> list[tuple[str, str]]:
    """The request's parameters that are a word or a number, and the names of its tools."""
    try:
        request = json.loads(exchange.request)
    except ValueError:  # cut
        return []
    if not isinstance(request, dict):
        return []
    simple = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in request.items()
        if isinstance(value, (str, int, float)) and name not in SPOKEN
    }
    tools = request.get("tools")
    names = [_tool_name(one) for one in tools] if isinstance(tools, list) else []
    return [*simple.items(), *([("tools", ", ".join(names))] if names else [])]


def _tool_name(tool: Any) -> str:
    """The name of a tool in the form of either API."""
    given = tool if isinstance(tool, dict) else {}
    function = given.get("function")
    return str((function if isinstance(function, dict) else given).get("name") or "unnamed")


def _page(
    request: HttpRequest, caller: Caller, request_id: str, shown: dict[str, Any]
) -> HttpResponse:
    error = caller.refused().select_related("version__adapter").named(request_id).first()
    event = find(caller, request_id)
    if event is None and error is None:
        if not may_be_unrecorded(request_id):
            raise Http404
        return render(request, "requests/unrecorded.html", {"caller": caller}, status=202)
    limit = error and limit_words(error.limit_kind, error.limit_scope)
    context: dict[str, Any] = {"error": error, "limit": limit, **shown}
    found = event or error
    assert found is not None
    entry = ListEntry(found, error)
    context |= {"entry": entry, "look": look_of(entry), "id": found.id}
    if error is not None and limit:
        context["limits_url"] = limits_url(caller, error)
    if caller.may(Permission.USE_PLAYGROUND):
        context["playground"] = playground_url(caller, found)
    if event is not None:
        context |= context_of(caller, event) | {"body": "requests/request_body.html"}
    elif error is not None:
        context |= refused_context(caller, error) | {"body": "requests/refused_body.html"}
    context |= annotating.context_of(caller, found.id)
    context |= {
        "is_kept": reading.is_kept(caller.tenant, found.id),
        "may_read": caller.may(Permission.READ_CONTENT),
    }
    part = "HX-Request" in request.headers
    template: str = context["body"] if part else "requests/request.html"
    return render(request, template, context | {"part": part})


@require_GET
@tenant_page(Permission.READ_OWN_USAGE)
def receipt(request: HttpRequest, caller: Caller, request_id: str) -> HttpResponse:
    """Download the signed receipt."""
    event = find(caller, request_id)
    if event is None:
        raise Http404
    name = f'attachment; filename="receipt-req_{event.id}.json"'
    signed = signer().sign(describe(event))
    indented = {"indent": 2, "ensure_ascii": False}
    return JsonResponse(signed, json_dumps_params=indented, headers={"Content-Disposition": name})


def find(caller: Caller, request_id: str) -> UsageEvent | None:
    """The event with its version (None if deleted), if there is one that the caller may see."""
    events = caller.events().select_related("tenant", "version__adapter")
    return events.named(request_id).first()


def limit_words(kind: str, scope: str) -> str:
    """The limit that refused a request and its scope, in words; empty if none did."""
    return f"{KINDS[kind].label} of the {scope}" if kind in KINDS else kind


def limits_url(caller: Caller, error: RefusedRequest) -> str:
    """URL of the page with the limit that refused it; empty if the caller may not see limits."""
    slug = caller.tenant.slug
    if not caller.may(Permission.READ_LIMITS):
        return ""
    own = caller.tenant.keys.with_limits().filter(pk=error.key_id)
    if error.limit_scope == "key" and own.exists():
        return reverse("limits-key", args=[slug, error.key_id])
    if error.limit_scope == "adapter" and error.adapter:
        return reverse("limits-adapter", args=[slug, error.adapter])
    return reverse("limits", args=[slug])


def playground_url(caller: Caller, shown: Listed) -> str:
    """The playground with its model: the same version, if that is still there."""
    version = shown.version
    model = f"{shown.adapter}@{version.number}" if version else shown.model
    page = reverse("playground", args=[caller.tenant.slug])
    return f"{page}?{urlencode({'model': model})}" if model else page


def refused_context(caller: Caller, error: RefusedRequest) -> dict[str, Any]:
    """Context of a request without an event: one that no engine had, or whose event is not
    recorded yet."""
    return {
        "caller": caller,
        "ran": error.outcome == Outcome.FAILED or error.code == ApiKeyRevoked.code,
        "source": SOURCES.get(error.surface, error.surface),
        "key": key_of(caller, error),
        "version": error.version,
    }


def key_of(caller: Caller, shown: Listed) -> ApiKey | None:
    """Its key, with the user who created it; None if it is deleted."""
    keys = ApiKey.objects.filter(tenant=caller.tenant).select_related("created_by")
    return keys.filter(pk=shown.key_id).first()


def context_of(caller: Caller, event: UsageEvent) -> dict[str, Any]:
    day = event.started_at.date().isoformat()
    batch = caller.tenant.batches.filter(pk=batch_of(event.id)).first()
    usage = reverse("usage", args=[caller.tenant.slug])
    return {
        "event": event,
        "caller": caller,
        "key": key_of(caller, event),
        "version": event.version,
        "batch": batch,
        "line": batch and number_of(event.id),
        "may_see_batches": caller.may(Permission.USE_FILES),
        "timeline": Timeline.of(event.attempts(), adapter=bool(event.adapter)),
        "cause": cause(event.finish_reason),
        "remedy": remedy(event.finish_reason),
        "scale": SCALE,
        "share": event.cached_tokens / event.prompt_tokens if event.prompt_tokens else None,
        "rate": rate(event),
        "charges": list(charges(event)),
        "cost": exact_money(event.cost),
        "usage": f"{usage}?" + urlencode({"period": "custom", "first": day, "last": day}),
    }


def rate(event: UsageEvent) -> float | None:
    """Tokens per second after the first one."""
    rest_s = event.total_s - (event.total_s if event.ttft_s is None else event.ttft_s)
    return (event.completion_tokens - 1) / rest_s if rest_s > 0 < event.completion_tokens else None


def charges(event: UsageEvent) -> Iterator[RequestCharge]:
    """The items that add up to its cost."""
    uncached = event.prompt_tokens - event.cached_tokens
    yield RequestCharge("Uncached prompt", uncached, event.prompt_price)
    yield RequestCharge("Cached prompt", event.cached_tokens, event.cached_prompt_price)
    yield RequestCharge("Output", event.completion_tokens, event.output_price)
