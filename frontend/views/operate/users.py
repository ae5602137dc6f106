"""User accounts: who can sign in and how, and who is an operator."""

from __future__ import annotations

from allauth.account.forms import default_token_generator
from allauth.account.utils import user_pk_to_url_str
from allauth.mfa.models import Authenticator
from django.contrib import messages
from django.db.models import Count, Exists, OuterRef, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from frontend import bulk, shown_once
from frontend.lists import older_page_of, words_of
from frontend.pages import operator_page, refusals_as_messages
from tenants.models import User

WHO = {
    "operators": ("Operators", Q(is_staff=True)),
    "inactive": ("Cannot sign in", Q(is_active=False)),
}
"""Filters of the list: title and condition, by their value in the URL."""
ACCESS_CHANGES = {
    ("active", True): "can sign in again",
    ("active", False): "can no longer sign in",
    ("operator", True): "is an operator now",
    ("operator", False): "is no longer an operator",
}
DEACTIVATE = bulk.Action(
    "Deactivate",
    "Deactivate the selected users?",
    "They are signed out and cannot sign in. API keys they created keep working; revoke them if "
    "needed.",
)
ACTIVATE = bulk.Action(
    "Activate",
    "Activate the selected users?",
    "They can sign in again with the same rights as before.",
    danger=False,
)


@require_GET
@never_cache
@operator_page
def users(request: HttpRequest) -> HttpResponse:
    """The list, newest first."""
    return _list(request)


@require_POST
@operator_page
def set_access(request: HttpRequest, pk: int, what: str) -> HttpResponse:
    """Enable or disable an account (which signs the user out at once), or grant or withdraw
    operator rights: `what` is `active` or `operator`."""
    user, yes = get_object_or_404(User, pk=pk), request.POST.get(what) == "yes"
    with refusals_as_messages(request):
        user.set_access(**{what: yes})
        messages.success(request, f"{user.username} {ACCESS_CHANGES[what, yes]}.")
    return redirect("operate_users")


@require_POST
@operator_page
def set_active_of_some(request: HttpRequest, *, active: bool) -> HttpResponse:
    """Enable or disable the chosen accounts."""

    def one(id: str) -> None:
        get_object_or_404(User, pk=bulk.number(id)).set_access(active=active)

    bulk.act(request, one, "user,users", "active" if active else "deactivated")
    return redirect("operate_users")


@require_POST
@operator_page
def remove_second_factor(request: HttpRequest, pk: int) -> HttpResponse:
    """Remove a lost second factor; until a new one is set up, the password alone is enough."""
    user = get_object_or_404(User, pk=pk)
    Authenticator.objects.filter(user=user).delete()
    messages.success(request, f"{user.username} no longer has a second factor.")
    return redirect("operate_users")


@require_POST
@operator_page
def password_link(request: HttpRequest, pk: int) -> HttpResponse:
    """Create a link to set a new password, which the list then shows once."""
    user = get_object_or_404(User, pk=pk, is_active=True)
    token = default_token_generator.make_token(user)
    where = reverse("account_reset_password_from_key", args=[user_pk_to_url_str(user), token])
    link = request.build_absolute_uri(where)
    return shown_once.redirect(request, reverse("operate_users"), link, about=user.username)


def _list(request: HttpRequest) -> HttpResponse:
    found = User.objects.order_by("-pk").annotate(
        tenants=Count("memberships"),
        second_factor=Exists(Authenticator.objects.filter(user=OuterRef("pk"))),
    )
    words, who = words_of(request), request.GET.get("who", "")
    if words:
        found = found.filter(Q(username__icontains=words) | Q(email__icontains=words))
    if who in WHO:
        found = found.filter(WHO[who][1])
    rows, last = older_page_of(request, found)
    context = {
        "users": rows,
        "last": last,
        "words": words,
        "who": who,
        "choices": [(value, title) for value, (title, _) in WHO.items()],
        "filtered": bool(words or who),
        "bulk": [
            DEACTIVATE.of("operate_users-deactivate-some"),
            ACTIVATE.of("operate_users-activate-some"),
        ],
    }
    return shown_once.render(request, "operate/users.html", context)
