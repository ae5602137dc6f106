"""Saved views of the list of requests: a member's filters under names."""

from __future__ import annotations

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from frontend.pages import member_to_save, refusals_as_messages, tenant_page
from frontend.views.requests.requests import RequestFilter, keys_of
from tenants.models import SavedView
from tenants.models.saved.kept import MAX_NAME
from tenants.models.saved.views import MAX_QUERY
from tenants.permissions import Caller, Permission


class ViewForm(forms.Form):
    """A name, and the query of the list's URL, of which only the filters are saved."""

    name = forms.CharField(max_length=MAX_NAME)
    query = forms.CharField(required=False, max_length=MAX_QUERY, widget=forms.HiddenInput)

    def __init__(self, caller: Caller, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._keys = keys_of(caller)

    def clean_query(self) -> str:
        given = QueryDict(self.cleaned_data["query"].removeprefix("?"))
        found = RequestFilter(given, self._keys)
        if not found.is_valid():
            raise ValidationError("This is not a filter of the list.")
        kept = QueryDict(mutable=True)
        kept.update({name: given[name] for name in given if name in found.fields and given[name]})
        return kept.urlencode()


@require_POST
@tenant_page(Permission.READ_OWN_USAGE)
def save(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Save the filter; a view with the same name is replaced."""
    member = member_to_save(caller, "views")
    form = ViewForm(caller, request.POST)
    list_of = reverse("requests", args=[caller.tenant.slug])
    if not form.is_valid():
        messages.error(request, "View not saved. Enter a name of up to 80 characters.")
        return redirect(list_of)
    query = form.cleaned_data["query"]
    with refusals_as_messages(request):
        view = SavedView.objects.keep(member, form.cleaned_data["name"], query=query)
        messages.success(request, f"“{view.name}” is saved.")
    return redirect(f"{list_of}?{query}" if query else list_of)


@require_POST
@tenant_page(Permission.READ_OWN_USAGE)
def delete(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Delete one of the caller's own views."""
    view = get_object_or_404(SavedView.objects.of(caller.tenant, caller.user), pk=pk)
    view.delete()
    messages.success(request, f"“{view.name}” is deleted.")
    return redirect("requests", caller.tenant.slug)
