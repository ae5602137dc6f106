"""Alert rules of a tenant, and which of their alerts are raised."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from frontend.pages import tenant_page
from tenants.errors import TooManyRules
from tenants.models import AlertRule
from tenants.permissions import Caller, Permission


class AlertRuleForm(forms.ModelForm):  # type: ignore[type-arg] # not subscriptable when it runs
    """A rule, new or changed."""

    class Meta:
        model = AlertRule
        fields = ("name", "metric", "threshold", "minutes", "min_requests")
        labels = {  # read by Django alone
            "metric": "Watch",
            "threshold": "Above",
            "minutes": "In the last minutes",
            "min_requests": "With at least so many requests",
        }


@require_http_methods(["GET", "POST"])
@never_cache
@tenant_page(Permission.GET_NOTIFICATIONS)
def alerts(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list; POST adds a rule."""
    if request.method != "POST":
        return _list(request, caller, AlertRuleForm())
    caller.require(Permission.EDIT_ALERTS)
    form = AlertRuleForm(request.POST)
    if form.is_valid():
        try:
            made = AlertRule.objects.add(caller.tenant, caller.user, **form.cleaned_data)
            messages.success(request, f"{made} is judged every minute from now on.")
            return redirect("alerts", caller.tenant.slug)
        except TooManyRules as error:
            form.add_error(None, error.message)
    return _list(request, caller, form)


@require_POST
@tenant_page(Permission.EDIT_ALERTS)
def change(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Change a rule; an alert that is raised ends."""
    rule = get_object_or_404(caller.tenant.alert_rules, pk=pk)
    form = _form_of(rule, request.POST)
    if not form.is_valid():
        return _list(request, caller, AlertRuleForm(), changing=form)
    rule.change(**form.cleaned_data)
    messages.success(request, f"{rule} changed.")
    return redirect("alerts", caller.tenant.slug)


@require_POST
@tenant_page(Permission.EDIT_ALERTS)
def remove(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Delete a rule, and with it its alert."""
    rule = get_object_or_404(caller.tenant.alert_rules, pk=pk)
    rule.delete()
    messages.success(request, f"{rule} deleted.")
    return redirect("alerts", caller.tenant.slug)


def _form_of(rule: AlertRule, given: Any = None) -> AlertRuleForm:
    """The form of a rule in the list, where each has its own."""
    return AlertRuleForm(given, instance=rule, auto_id=f"rule-{rule.pk}-%s")


def _list(
    request: HttpRequest, caller: Caller, form: AlertRuleForm, changing: AlertRuleForm | None = None
) -> HttpResponse:
    """The page; `form` of a new rule, or that of one that is `changing`, may have errors."""
    rows = [
        (rule, changing if changing and changing.instance.pk == rule.pk else _form_of(rule))
        for rule in caller.tenant.alert_rules.all()
    ]
    may_edit = caller.may(Permission.EDIT_ALERTS)
    context = {"rows": rows, "form": form, "may_edit": may_edit}
    status = 422 if form.errors or changing else 200
    return render(request, "alerts.html", context, status=status)
