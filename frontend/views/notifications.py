"""Notifications of a tenant, or of the installation: who gets them, and what became of each."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from frontend.lists import page_of, place_of
from frontend.pages import operator_page, tenant_page
from tenants.errors import TooManyTargets
from tenants.models import Tenant, User
from tenants.models.notifications import (
    OF_INSTALLATION,
    OF_TENANTS,
    Delivery,
    Target,
)
from tenants.notifications.addresses import MAX_URL, Forbidden, check_form
from tenants.permissions import Caller, Permission


class TargetForm(forms.Form):
    """A new target."""

    url = forms.CharField(
        max_length=MAX_URL,
        label="URL",
        help_text="It begins with https://, and is reached over the Internet.",
        widget=forms.TextInput({"autocomplete": "off"}),
    )
    kinds = forms.MultipleChoiceField(label="Events", widget=forms.CheckboxSelectMultiple)

    def __init__(self, given: Any, tenant: Tenant | None) -> None:
        super().__init__(given)
        kinds = OF_INSTALLATION if tenant is None else OF_TENANTS
        field = self.fields["kinds"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(kind.value, kind.label) for kind in kinds]

    def clean_url(self) -> str:
        url: str = self.cleaned_data["url"]
        try:
            check_form(url, private=settings.WEBHOOKS_PRIVATE)
        except Forbidden as error:
            raise ValidationError(str(error)) from error
        return url


@require_http_methods(["GET", "POST"])
@never_cache
@tenant_page(Permission.EDIT_TENANT)
def notifications(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The page; POST makes a target, whose secret the answer shows."""
    return _page(request, caller.tenant)


@require_POST
@tenant_page(Permission.EDIT_TENANT)
def remove(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    return _removed(request, caller.tenant, pk)


@require_POST
@tenant_page(Permission.EDIT_TENANT)
def replay(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    return _replayed(request, caller.tenant, pk)


@require_http_methods(["GET", "POST"])
@never_cache
@operator_page
def of_installation(request: HttpRequest) -> HttpResponse:
    """As `notifications`, of the whole installation."""
    return _page(request, None)


@require_POST
@operator_page
def remove_of_installation(request: HttpRequest, pk: int) -> HttpResponse:
    return _removed(request, None, pk)


@require_POST
@operator_page
def replay_of_installation(request: HttpRequest, pk: int) -> HttpResponse:
    return _replayed(request, None, pk)


def _page(request: HttpRequest, tenant: Tenant | None) -> HttpResponse:
    posted = request.method == "POST"
    form = TargetForm(request.POST if posted else None, tenant)
    made = _made(request, form, tenant) if posted and form.is_valid() else None
    if made is not None:
        form = TargetForm(None, tenant)
    found = Delivery.objects.filter(target__tenant=tenant).select_related("notification", "target")
    if (before := place_of(request, "before")) is not None:
        found = found.filter(pk__lt=before)
    deliveries, last = page_of(found)
    context = {
        "targets": list(Target.objects.of(tenant)),
        "deliveries": deliveries,
        "last": last,
        "form": form,
        "made": made,
    }
    return render(request, "notifications.html", context, status=422 if form.errors else 200)


def _made(request: HttpRequest, form: TargetForm, tenant: Tenant | None) -> Target | None:
    assert isinstance(request.user, User)
    given = form.cleaned_data
    try:
        return Target.objects.add(tenant, given["url"], given["kinds"], request.user)
    except TooManyTargets as error:
        form.add_error(None, error.message)
        return None


def _removed(request: HttpRequest, tenant: Tenant | None, pk: int) -> HttpResponse:
    target = get_object_or_404(Target.objects.of(tenant), pk=pk)
    target.delete()
    messages.success(request, f"{target} gets no more notifications.")
    return _back(tenant)


def _replayed(request: HttpRequest, tenant: Tenant | None, pk: int) -> HttpResponse:
    get_object_or_404(Delivery.objects.filter(target__tenant=tenant), pk=pk).replay()
    messages.success(request, "It is delivered again now.")
    return _back(tenant)


def _back(tenant: Tenant | None) -> HttpResponse:
    if tenant is None:
        return redirect("operate_notifications")
    return redirect("notifications", tenant.slug)
