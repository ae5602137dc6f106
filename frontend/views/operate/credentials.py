"""Credentials of engines for gateways: create, show once, rotate, revoke."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from frontend import bulk, shown_once
from frontend.lists import older_page_of
from frontend.pages import operator_page, refusals_as_messages
from tenants.errors import CredentialExists
from tenants.models import EngineCredential, User

LIST = "operate_engines-credentials"
MAX_POOL = 255
REVOKE = bulk.Action(
    "Revoke",
    "Revoke the selected credentials?",
    "Their engines are disconnected now, and their requests end. Usage left in their journals goes "
    "to quarantine if an engine with another credential delivers it. This cannot be undone.",
)


class CredentialForm(forms.Form):
    """A new credential."""

    name = forms.CharField(
        max_length=200,
        help_text="Such as the machine that the engine runs on. Create one for each engine.",
        widget=forms.TextInput({"autocomplete": "off"}),
    )
    pools = forms.CharField(
        required=False,
        label="Only these base models",
        help_text="Names separated by spaces. Leave empty for all.",
        widget=forms.TextInput({"autocomplete": "off"}),
    )

    def clean_pools(self) -> list[str] | None:
        names: list[str] = self.cleaned_data["pools"].replace(",", " ").split()
        if any(len(name) > MAX_POOL for name in names):
            raise ValidationError(f"A base model's name has at most {MAX_POOL} characters.")
        return sorted(set(names)) or None

    def issue(self, user: User) -> str | None:
        """The text of the new credential; None, with a form error, if the name is taken."""
        try:
            return EngineCredential.objects.issue(created_by=user, **self.cleaned_data)[1]
        except CredentialExists as error:
            self.add_error("name", error.message)
            return None


@require_http_methods(["GET", "POST"])
@never_cache
@operator_page
def credentials(request: HttpRequest) -> HttpResponse:
    """The list; POST creates a credential, whose text the list then shows once."""
    if request.method != "POST":
        return _list(request, CredentialForm())
    assert isinstance(request.user, User)
    form = CredentialForm(request.POST)
    secret = form.issue(request.user) if form.is_valid() else None
    return _list(request, form) if secret is None else _showing(request, secret)


@require_POST
@operator_page
def rotate(request: HttpRequest, pk: int) -> HttpResponse:
    """Replace the secret; the old one stops working at once."""
    credential = get_object_or_404(EngineCredential, pk=pk)
    with refusals_as_messages(request):
        return _showing(request, credential.rotate())
    return redirect(LIST)


@require_POST
@operator_page
def revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """Revoke it for good, and end the links of the engine that uses it."""
    credential = get_object_or_404(EngineCredential, pk=pk)
    credential.revoke()
    messages.success(request, f"“{credential.name}” is revoked. Its engine is disconnected.")
    return redirect(LIST)


@require_POST
@operator_page
def revoke_some(request: HttpRequest) -> HttpResponse:
    """Revoke the chosen credentials for good."""

    def one(id: str) -> None:
        get_object_or_404(EngineCredential, pk=bulk.number(id)).revoke()

    bulk.act(request, one, "credential,credentials", "revoked")
    return redirect(LIST)


def _showing(request: HttpRequest, secret: str) -> HttpResponse:
    return shown_once.redirect(request, reverse(LIST), secret)


def _list(request: HttpRequest, form: CredentialForm) -> HttpResponse:
    found = EngineCredential.objects.select_related("created_by")
    rows, last = older_page_of(request, found)
    context: dict[str, Any] = {
        "credentials": rows,
        "last": last,
        "form": form,
        "bulk": [REVOKE.of("operate_engines-revoke-some")],
    }
    status = 422 if form.errors else 200
    return shown_once.render(request, "operate/credentials.html", context, status=status)
