"""Where people land, and how they join."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from frontend.accounts import INVITED, invitation_of
from tenants.errors import InvitationOver
from tenants.models import Tenant, User


@require_GET
@login_required
def home(request: HttpRequest) -> HttpResponse:
    """Operators see the installation, others the only tenant that they have, else a choice."""
    assert isinstance(request.user, User)
    if request.user.is_staff:
        return redirect("operate")
    tenants = list(Tenant.objects.visible_to(request.user)[:50])
    if len(tenants) == 1:
        return redirect("overview", tenants[0].slug)
    return render(request, "home.html", {"tenants": tenants})


@require_GET
def invitation(request: HttpRequest, token: str) -> HttpResponse:
    """A link that somebody was sent: remember it, and go on where its token is in no address."""
    request.session[INVITED] = token
    return redirect("join")


@require_http_methods(["GET", "POST"])
def join(request: HttpRequest) -> HttpResponse:
    """Accept the invitation, after signing in or making an account."""
    found = invitation_of(request)
    if found is None:
        return render(request, "join.html", {"invitation": None}, status=404)
    if request.method == "POST" and isinstance(request.user, User):
        try:
            found.accept(request.user)
        except InvitationOver as over:
            messages.error(request, over.message)
            return redirect("join")
        del request.session[INVITED]
        return redirect("overview", found.tenant.slug)
    return render(request, "join.html", {"invitation": found})
