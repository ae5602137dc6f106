"""Access control of the console's pages: the user, the tenant and the permissions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from frontend.sign_in import second_factor
from frontend.sign_in.throttling import TooManyAttempts
from tenants.api import second_factor as required
from tenants.api.tables import TooManyDownloads, download
from tenants.errors import Refused
from tenants.models import AuditEntry, Membership, User
from tenants.models.audit import actor_of
from tenants.permissions import Caller, Permission

LOGIN = "account_login"
VISIT_INTERVAL = timedelta(hours=1)
"""An operator's visits to a tenant are logged at most once in this time."""


View = Callable[Concatenate[HttpRequest, Caller, ...], HttpResponseBase]
"""A view of one tenant's page; further arguments come from the URL."""


def signed_in(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Redirects anonymous requests to the sign-in page; if htmx asks for part of a page, the whole
    page is redirected."""

    @wraps(view)
    def guarded(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if request.user.is_authenticated:
            return view(request, **kwargs)
        if "HX-Request" in request.headers:
            return HttpResponse(status=204, headers={"HX-Redirect": reverse(LOGIN)})
        return redirect_to_login(request.get_full_path())

    return guarded


def tenant_page(
    permission: Permission, *, while_suspended: bool = False
) -> Callable[[View], Callable[..., HttpResponseBase]]:
    """For views under `/t/<slug>/`: requires a sign-in, a tenant the user can see, and a
    permission.

    A tenant that the user does not belong to is 404, a page that their role may not see is 403. One
    that requires a second factor leads to setting it up first. For
    changes the view requires further permissions with `caller.require`. A suspended tenant is
    read-only, except for views that work `while_suspended`.
    """

    def decorate(view: View) -> Callable[..., HttpResponseBase]:
        @signed_in
        @wraps(view)
        def guarded(request: HttpRequest, slug: str, **kwargs: Any) -> HttpResponseBase:
            assert isinstance(request.user, User)
            caller = Caller.of_user(request.user, slug)
            if caller is None:
                raise Http404
            request.caller = caller  # type: ignore[attr-defined] # for the page's sidebar
            if required.closes(request, caller.tenant):
                return second_factor.ask_for(request, caller.tenant)
            caller.require(permission)
            may_change = caller.tenant.active or caller.operator or while_suspended
            if request.method == "POST" and not may_change:
                raise PermissionDenied("The tenant is suspended.")
            if request.method == "POST" and caller.tenant.deleted:
                raise PermissionDenied("The tenant is deleted.")
            _log_visit(request, caller)
            return view(request, caller, **kwargs)

        return guarded

    return decorate


def member_to_save(caller: Caller, things: str) -> Membership:
    """The caller's membership; raises PermissionDenied for operators, who can only read them."""
    found = caller.tenant.memberships.filter(user=caller.user).first()
    if found is None:
        raise PermissionDenied(f"Only members of the tenant can save {things}.")
    return found


def operator_page(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """For views of the whole installation: operators only; others get 404."""

    @signed_in
    @wraps(view)
    def guarded(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_staff:
            raise Http404
        return view(request, **kwargs)

    return guarded


def too_many_attempts(request: HttpRequest, refused: TooManyAttempts) -> HttpResponse:
    """The page that says when to try again."""
    return _too_many(request, str(refused.message), refused.retry_after_s)


def as_file(
    request: HttpRequest,
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    owner: str,
) -> HttpResponseBase:
    """As `tables.download`, or a 429 page if the owner has too many downloads."""
    try:
        return download(name, columns, rows, owner=owner)
    except TooManyDownloads as refused:
        return _too_many(request, str(refused.detail), refused.wait)


def _too_many(request: HttpRequest, message: str, retry_after_s: int) -> HttpResponse:
    answer = render(request, "429.html", {"message": message}, status=429)
    answer["Retry-After"] = str(retry_after_s)
    return answer


@contextmanager
def refusals_as_messages(request: HttpRequest) -> Iterator[None]:
    """Shows a refusal raised in this block as a message on the next page; the rest of the block is
    skipped."""
    try:
        yield
    except Refused as refused:
        messages.error(request, refused.message)


def _log_visit(request: HttpRequest, caller: Caller) -> None:
    """Log that an operator opened a page of the tenant, so that the tenant can see it."""
    if caller.role is not None or not caller.operator:
        return
    visits: dict[str, str] = request.session.get("looks", {})
    now = timezone.now()
    last = visits.get(caller.tenant.slug)
    if last is None or datetime.fromisoformat(last) + VISIT_INTERVAL < now:
        actor = actor_of(request)
        assert actor is not None
        AuditEntry.objects.note(actor, caller.tenant, "viewed", caller.tenant.slug)
        request.session["looks"] = {**visits, caller.tenant.slug: now.isoformat()}
