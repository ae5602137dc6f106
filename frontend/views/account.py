"""A person's own account, where allauth has no page for it."""

from __future__ import annotations

from allauth.usersessions.internal.flows.sessions import end_sessions
from allauth.usersessions.models import UserSession
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from frontend.pages import signed_in
from frontend.sign_in.devices import device


@require_POST
@signed_in
def end_session(request: HttpRequest, pk: int) -> HttpResponse:
    """End one of the person's own sessions; its pages and sockets stop at once."""
    session = get_object_or_404(UserSession, pk=pk, user=request.user)
    end_sessions(request, [session])
    messages.success(request, f"{device(session.user_agent)} is signed out.")
    return redirect("usersessions_list")
