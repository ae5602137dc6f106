"""Tags and scores of a request, as members set them on its page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST
from django.views.decorators.vary import vary_on_headers

from frontend.pages import tenant_page
from tenants.errors import Refused
from tenants.listing import Listed, Where
from tenants.models import RequestScore, RequestTag, User
from tenants.models.annotations import MAX_COMMENT, MAX_WORD, ScoreValue, scores_of
from tenants.permissions import Caller, Permission


def context_of(caller: Caller, request_id: str) -> dict[str, Any]:
    """Context of `requests/annotations.html`."""
    return {
        "caller": caller,
        "id": request_id,
        "tags": RequestTag.objects.of(caller.tenant, [request_id]),
        "scores": scores_of(caller.tenant, [request_id]).get(request_id, []),
        "may_annotate": caller.may(Permission.EDIT_ANNOTATIONS),
        "max_word": MAX_WORD,
        "max_comment": MAX_COMMENT,
    }


@require_POST
@vary_on_headers("HX-Request")
@tenant_page(Permission.EDIT_ANNOTATIONS)
def tag(request: HttpRequest, caller: Caller, request_id: str) -> HttpResponse:
    """Add a tag."""

    def add(found: Listed, by: User) -> None:
        name = request.POST.get("tag", "").strip().lower()
        RequestTag.objects.put(caller.tenant, found.id, found.started_at, by, name)

    return _changed(request, caller, request_id, add)


@require_POST
@vary_on_headers("HX-Request")
@tenant_page(Permission.EDIT_ANNOTATIONS)
def untag(request: HttpRequest, caller: Caller, request_id: str, pk: int) -> HttpResponse:
    """Remove a tag."""

    def drop(found: Listed, by: User) -> None:
        get_object_or_404(RequestTag.objects.of(caller.tenant, [found.id]), pk=pk).delete()

    return _changed(request, caller, request_id, drop)


@require_POST
@vary_on_headers("HX-Request")
@tenant_page(Permission.EDIT_ANNOTATIONS)
def score(request: HttpRequest, caller: Caller, request_id: str) -> HttpResponse:
    """Set a score, in place of the one of the same name that a person gave."""

    def add(found: Listed, by: User) -> None:
        given = {name: request.POST.get(name, "").strip() for name in ("score", "value", "comment")}
        RequestScore.objects.put(
            caller.tenant,
            found.id,
            found.started_at,
            by,
            name=given["score"].lower(),
            value=ScoreValue.typed(given["value"]),
            comment=given["comment"],
        )

    return _changed(request, caller, request_id, add)


@require_POST
@vary_on_headers("HX-Request")
@tenant_page(Permission.EDIT_ANNOTATIONS)
def unscore(request: HttpRequest, caller: Caller, request_id: str, pk: int) -> HttpResponse:
    """Delete a score."""

    def drop(found: Listed, by: User) -> None:
        get_object_or_404(RequestScore.objects.of(caller.tenant, [found.id]), pk=pk).delete()

    return _changed(request, caller, request_id, drop)


def _changed(
    request: HttpRequest, caller: Caller, request_id: str, change: Callable[[Listed, User], None]
) -> HttpResponse:
    """Change a request that the caller sees; the section of its page, or a redirect to the page."""
    found = next(iter(Where.of(caller).named(request_id).events), None)
    if found is None:
        raise Http404
    assert isinstance(request.user, User)
    error = ""
    try:
        change(found, request.user)
    except ValidationError as invalid:
        error = " ".join(invalid.messages)
    except Refused as refused:
        error = refused.message
    if "HX-Request" in request.headers:
        context = context_of(caller, found.id) | {"annotation_error": error}
        status = 422 if error else 200
        return render(request, "requests/annotations.html", context, status=status)
    if error:
        messages.error(request, error)
    return redirect("requests-one", caller.tenant.slug, found.id)
