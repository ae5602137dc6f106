"""Notifications of a tenant, or of the installation: webhooks, their deliveries, and the
emails that people get."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from frontend import bulk, shown_once
from frontend.formats import duration
from frontend.lists import older_page_of
from frontend.pages import operator_page, refusals_as_messages, tenant_page
from tenants.errors import TooManyTargets
from tenants.models import Tenant, User
from tenants.models.notifications import (
    OF_INSTALLATION,
    OF_TENANTS,
    Delivery,
    DeliveryState,
    NotificationKind,
    Target,
)
from tenants.notifications import mail, testing
from tenants.notifications.addresses import MAX_URL, Forbidden, check_form
from tenants.permissions import Caller, Permission

REPLAY = bulk.Action(
    "Send again", "Send the selected deliveries again?", "Each is sent now.", danger=False
)


class TargetForm(forms.Form):
    """A new webhook."""

    url = forms.CharField(
        max_length=MAX_URL,
        label="URL",
        widget=forms.TextInput({"autocomplete": "off", "placeholder": "https://"}),
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
@tenant_page(Permission.GET_NOTIFICATIONS)
def notifications(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The page; POST adds a webhook, whose secret the page then shows once."""
    if request.method == "POST":
        caller.require(Permission.EDIT_WEBHOOKS)
    may_edit = caller.may(Permission.EDIT_WEBHOOKS)
    return _page(request, caller.tenant, _mailed(caller), may_edit=may_edit)


@require_POST
@tenant_page(Permission.GET_NOTIFICATIONS)
def choose_mails(request: HttpRequest, caller: Caller) -> HttpResponse:
    return _muted(request, caller.tenant, _mailed(caller))


@require_POST
@tenant_page(Permission.EDIT_WEBHOOKS)
def rotate(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    return _rotated(request, caller.tenant, pk)


@require_POST
@tenant_page(Permission.EDIT_WEBHOOKS)
def test(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    return _tested(request, caller.tenant, pk)


@require_POST
@tenant_page(Permission.EDIT_WEBHOOKS)
def remove(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    return _removed(request, caller.tenant, pk)


@require_POST
@tenant_page(Permission.EDIT_WEBHOOKS)
def replay(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    return _replayed(request, caller.tenant, pk)


@require_POST
@tenant_page(Permission.EDIT_WEBHOOKS)
def replay_some(request: HttpRequest, caller: Caller) -> HttpResponse:
    return _replayed_some(request, caller.tenant)


@require_http_methods(["GET", "POST"])
@never_cache
@operator_page
def of_installation(request: HttpRequest) -> HttpResponse:
    """As `notifications`, for the whole installation."""
    return _page(request, None, mail.kinds_of(None), may_edit=True)


@require_POST
@operator_page
def choose_mails_of_installation(request: HttpRequest) -> HttpResponse:
    return _muted(request, None, mail.kinds_of(None))


@require_POST
@operator_page
def rotate_of_installation(request: HttpRequest, pk: int) -> HttpResponse:
    return _rotated(request, None, pk)


@require_POST
@operator_page
def test_of_installation(request: HttpRequest, pk: int) -> HttpResponse:
    return _tested(request, None, pk)


@require_POST
@operator_page
def remove_of_installation(request: HttpRequest, pk: int) -> HttpResponse:
    return _removed(request, None, pk)


@require_POST
@operator_page
def replay_of_installation(request: HttpRequest, pk: int) -> HttpResponse:
    return _replayed(request, None, pk)


@require_POST
@operator_page
def replay_some_of_installation(request: HttpRequest) -> HttpResponse:
    return _replayed_some(request, None)


def _mailed(caller: Caller) -> list[NotificationKind]:
    """The kinds that the caller gets by email; none for an operator who is not a member."""
    return mail.kinds_of(caller.tenant, caller.role) if caller.role else []


def _page(
    request: HttpRequest, tenant: Tenant | None, mailed: list[NotificationKind], *, may_edit: bool
) -> HttpResponse:
    assert isinstance(request.user, User)
    posted = request.method == "POST"
    form = TargetForm(request.POST if posted else None, tenant)
    if posted and form.is_valid():
        try:
            made = Target.objects.add(tenant, **form.cleaned_data, by=request.user)
            return shown_once.redirect(request, _address(tenant), made.secrets[0], made.url)
        except TooManyTargets as error:
            form.add_error(None, error.message)
    muted = mail.muted_by(request.user, tenant)
    context = {
        "form": form,
        "may_edit": may_edit,
        "mailed": [(kind, kind.value not in muted) for kind in mailed],
        **(_webhooks(request, tenant) if may_edit else {}),
    }
    status = 422 if form.errors else 200
    return shown_once.render(request, "notifications.html", context, status=status)


def _webhooks(request: HttpRequest, tenant: Tenant | None) -> dict[str, Any]:
    found = Delivery.objects.to_webhooks(tenant)
    deliveries, last = older_page_of(request, found)
    targets = list(Target.objects.of(tenant))
    replay = (
        REPLAY.of("operate_notifications-replay-some")
        if tenant is None
        else REPLAY.of("notifications-replay-some", tenant.slug)
    )
    return {"targets": targets, "deliveries": deliveries, "last": last, "bulk": [replay]}


def _muted(
    request: HttpRequest, tenant: Tenant | None, mailed: list[NotificationKind]
) -> HttpResponse:
    assert isinstance(request.user, User)
    wanted = request.POST.getlist("kinds")
    mail.mute(request.user, tenant, [kind.value for kind in mailed if kind.value not in wanted])
    messages.success(request, "Email settings saved.")
    return redirect(_address(tenant))


def _rotated(request: HttpRequest, tenant: Tenant | None, pk: int) -> HttpResponse:
    target = get_object_or_404(Target.objects.of(tenant), pk=pk)
    return shown_once.redirect(request, _address(tenant), target.rotate(), target.url)


def _tested(request: HttpRequest, tenant: Tenant | None, pk: int) -> HttpResponse:
    target = get_object_or_404(Target.objects.of(tenant), pk=pk)
    with refusals_as_messages(request):
        sent = testing.outcome(target.test())
        if sent.state == DeliveryState.WAITING:
            messages.warning(request, "No worker has sent the test event yet. It is listed below.")
        elif sent.error:
            messages.error(
                request, f"The test event failed after {_duration_text(sent)}: {sent.error}"
            )
        else:
            messages.success(request, f"{target} answered {sent.status} in {_duration_text(sent)}.")
    return redirect(_address(tenant))


def _duration_text(sent: Delivery) -> str:
    return duration((sent.duration_ms or 0) / 1000)


def _removed(request: HttpRequest, tenant: Tenant | None, pk: int) -> HttpResponse:
    target = get_object_or_404(Target.objects.of(tenant), pk=pk)
    target.delete()
    messages.success(request, f"{target} no longer gets notifications.")
    return redirect(_address(tenant))


def _replayed(request: HttpRequest, tenant: Tenant | None, pk: int) -> HttpResponse:
    get_object_or_404(Delivery.objects.to_webhooks(tenant), pk=pk).replay()
    messages.success(request, "The notification is being sent again.")
    return redirect(_address(tenant))


def _replayed_some(request: HttpRequest, tenant: Tenant | None) -> HttpResponse:
    def one(id: str) -> None:
        get_object_or_404(Delivery.objects.to_webhooks(tenant), pk=bulk.number(id)).replay()

    bulk.act(request, one, "delivery,deliveries", "being sent again")
    return redirect(_address(tenant))


def _address(tenant: Tenant | None) -> str:
    if tenant is None:
        return reverse("operate_notifications")
    return reverse("notifications", args=[tenant.slug])
