"""The start page, and joining a tenant by invitation."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_http_methods

from frontend.navigation import slug_in
from frontend.pages import refusals_as_messages, signed_in, too_many_attempts
from frontend.sign_in import second_factor, throttling
from frontend.sign_in.accounts import INVITED, invitation_of
from frontend.views.members import text_of
from tenants.api.second_factor import closes
from tenants.models import Invitation, Role, Tenant, User


@require_GET
@login_required
def home(request: HttpRequest) -> HttpResponse:
    """Operators get the installation's page, members of one tenant that tenant's, others a list."""
    assert isinstance(request.user, User)
    if request.user.is_staff:
        return redirect("operate")
    tenants = list(Tenant.objects.visible_to(request.user)[:50])
    if len(tenants) == 1:
        return redirect("overview", tenants[0].slug)
    return render(request, "home.html", {"tenants": tenants})


@require_GET
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """An invitation link: store its token in the session, and redirect to a URL without it."""
    try:
        attempt = throttling.INVITATION_LINKS.begin(request)
    except throttling.TooManyAttempts as refused:
        return too_many_attempts(request, refused)
    if Invitation.objects.find(token) is None:
        return _over(request)
    attempt.succeeded()
    request.session[INVITED] = token
    return redirect("join")


@require_http_methods(["GET", "POST"])
def join(request: HttpRequest) -> HttpResponse:
    """Accept the invitation, after signing in or creating an account."""
    found = invitation_of(request)
    if found is None:
        return _over(request)
    if request.method == "POST" and isinstance(request.user, User):
        with refusals_as_messages(request):
            found.accept(request.user)
            del request.session[INVITED]
            return redirect("overview", found.tenant.slug)
        return redirect("join")
    context = {"invitation": found, "role_text": text_of(Role(found.role))}
    return render(request, "join.html", context)


def _over(request: HttpRequest) -> HttpResponse:
    return render(request, "join.html", {"invitation": None}, status=404)


@require_GET
@signed_in
def ask_for_second_factor(request: HttpRequest) -> HttpResponse:
    """Asks an operator, or a member of a tenant that requires it, to set one up; others are
    redirected to where they were going."""
    onward = request.GET.get("next", "")
    if not url_has_allowed_host_and_scheme(onward, allowed_hosts=None):
        onward = reverse("console")
    tenant = _closed_tenant(request, onward)
    if tenant is None and not second_factor.is_missing(request):
        return redirect(onward)
    required = tenant is not None or second_factor.is_required()
    context = {"onward": onward, "required": required, "tenant": tenant}
    return render(request, "second_factor.html", context)


def _closed_tenant(request: HttpRequest, onward: str) -> Tenant | None:
    """The tenant to which this address leads, if it is closed for want of a second factor."""
    slug = slug_in(onward)
    assert isinstance(request.user, User)
    tenant = Tenant.objects.visible_to(request.user).filter(slug=slug).first() if slug else None
    return tenant if tenant is not None and closes(request, tenant) else None
