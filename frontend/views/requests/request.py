"""One request: its timeline, cost and receipt, or why it was refused; and what was asked and
answered, where that is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
from frontend.views.requests.requests import look_of
from inference.gateway.lines.seals import batch_of, number_of
from tenants.billing.receipts import describe, signer
from tenants.content import reading
from tenants.limits.kinds import KINDS
from tenants.listing import Entry, Listed
from tenants.models import ApiKey, AuditEntry, RefusedRequest, SupersededAttempt, UsageEvent
from tenants.models.audit import actor_of
from tenants.permissions import Caller, Permission

SCALE = 1000
"""Width of the timeline, in SVG units."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of the request; `x` and `width` are in units of SCALE."""

    name: str
    look: str
    seconds: float
    x: float
    width: float

    @property
    def drawn(self) -> float:
        """The width of its bar: however short it was, it is seen."""
        return max(self.width, SCALE / 100)


@dataclass(frozen=True, slots=True)
class Charge:
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
    """The whole page, or for htmx the content of the drawer."""
    return _page(request, caller, request_id, {})


@require_POST
@never_cache
@vary_on_headers("HX-Request")
@tenant_page(Permission.READ_CONTENT)
def content(request: HttpRequest, caller: Caller, request_id: str) -> HttpResponse:
    """What was asked and answered, where it is stored; the audit log says who looked."""
    event = find(caller, request_id)
    error = None if event else caller.refused().named(request_id).first()
    found = event or error
    if found is None or not reading.is_kept(caller.tenant, found.pk):
        raise Http404
    actor = actor_of(request)
    assert actor is not None
    AuditEntry.objects.note(actor, caller.tenant, "read", f"req_{found.pk}", kind="content")
    exchange = reading.read(caller.tenant, found.pk)
    shown = {"exchange": exchange, "unreadable": exchange is None}
    if "HX-Request" in request.headers:
        return render(request, "request_content.html", {"caller": caller, **shown})
    return _page(request, caller, request_id, shown)


def _page(
    request: HttpRequest, caller: Caller, request_id: str, shown: dict[str, Any]
) -> HttpResponse:
    error = caller.refused().select_related("version__adapter").named(request_id).first()
    event = find(caller, request_id)
    if event is None and error is None:
        raise Http404
    limit = error and limit_words(error.limit_kind, error.limit_scope)
    context: dict[str, Any] = {"error": error, "limit": limit, **shown}
    found = event or error
    assert found is not None
    entry = Entry(found, error)
    context |= {"entry": entry, "look": look_of(entry), "id": found.id}
    if error is not None and limit:
        context["limits_url"] = limits_url(caller, error)
    if caller.may(Permission.USE_PLAYGROUND):
        context["playground"] = playground_url(caller, found)
    if event is not None:
        context |= context_of(caller, event) | {"body": "request_body.html"}
    elif error is not None:
        context |= refused_context(caller, error) | {"body": "refused_body.html"}
    context |= {
        "is_kept": reading.is_kept(caller.tenant, found.id),
        "may_read": caller.may(Permission.READ_CONTENT),
    }
    part = "HX-Request" in request.headers
    template: str = context["body"] if part else "request.html"
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
    """A limit that refused a request, and whose it is, in words; empty if none did."""
    return f"{KINDS[kind].label} of the {scope}" if kind in KINDS else kind


def limits_url(caller: Caller, error: RefusedRequest) -> str:
    """Where the limit that refused it is seen; empty where the caller may not see it."""
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


def attempts(event: UsageEvent) -> list[SupersededAttempt]:
    """What other engines did of it before, in order."""
    if event.attempt == 1:
        return []
    found = SupersededAttempt.objects.filter(request_id=event.id, started_at=event.started_at)
    return list(found.order_by("attempt"))


def refused_context(caller: Caller, error: RefusedRequest) -> dict[str, Any]:
    """Of a request that no engine had."""
    return {
        "caller": caller,
        "key": key_of(caller, error),
        "version": error.version,
    }


def key_of(caller: Caller, shown: Listed) -> ApiKey | None:
    """Its key, with whoever made that; None if it is gone."""
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
        "attempts": attempts(event),
        "cause": cause(event.finish_reason),
        "remedy": remedy(event.finish_reason),
        "phases": list(phases(event)),
        "scale": SCALE,
        "share": event.cached_tokens / event.prompt_tokens if event.prompt_tokens else None,
        "rate": rate(event),
        "charges": list(charges(event)),
        "cost": exact_money(event.cost),
        "usage": f"{usage}?" + urlencode({"period": "custom", "first": day, "last": day}),
    }


def phases(event: UsageEvent) -> Iterator[Phase]:
    """Its phases from the moment the engine received it, in order; empty if not measured.

    An engine that died reports no times. An answer that was not streamed has no first token, so its
    prefill and decoding are one phase.
    """
    end, x = event.total_s, 0.0
    for name, look, until in _ends(event) if end > 0 else ():
        width = max(0.0, min(until, end) / end * SCALE - x)
        yield Phase(name, look, width / SCALE * end, round(x, 2), round(width, 2))
        x += width


def _ends(event: UsageEvent) -> Iterator[tuple[str, str, float]]:
    """Each phase with its CSS class, and its end in seconds from the start."""
    yield "Queued", "queued", event.queue_s
    if event.adapter:
        yield "Load adapter", "loading", event.queue_s + event.load_s
    if event.ttft_s is None:
        yield "Without a token", "prefill", event.total_s
    elif event.ttft_s < event.total_s:
        yield "Prefill", "prefill", event.ttft_s
        yield "Decode", "decode", event.total_s
    else:
        yield "Prefill and decode", "decode", event.total_s


def rate(event: UsageEvent) -> float | None:
    """Tokens per second after the first one."""
    took_s = event.total_s - (event.total_s if event.ttft_s is None else event.ttft_s)
    return (event.completion_tokens - 1) / took_s if took_s > 0 < event.completion_tokens else None


def charges(event: UsageEvent) -> Iterator[Charge]:
    """The items that add up to its cost."""
    uncached = event.prompt_tokens - event.cached_tokens
    yield Charge("Uncached prompt", uncached, event.prompt_price)
    yield Charge("Cached prompt", event.cached_tokens, event.cached_prompt_price)
    yield Charge("Output", event.completion_tokens, event.output_price)
