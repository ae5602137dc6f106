"""Members of a tenant, and the links that invite new ones."""

from __future__ import annotations

from typing import Any

from allauth.mfa.models import Authenticator
from django import forms
from django.contrib import messages
from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from frontend import bulk, shown_once
from frontend.lists import id_in_url, page_of, words_of
from frontend.pages import refusals_as_messages, tenant_page
from tenants.api import second_factor
from tenants.errors import Refused
from tenants.models import Invitation, Membership, Role, User
from tenants.permissions import RANK, Caller, Permission

ROLES = {
    Role.VIEWER: "Reads adapters, limits, members, the list of API keys, and the usage of all. "
    "Sees no single requests, and cannot call models.",
    Role.DEVELOPER: "Also uses the playground, files and batches, creates API keys, and uploads, "
    "promotes and deletes adapters. Sees only their own usage and requests.",
    Role.ADMIN: "Also manages members, all API keys, limits and webhooks, sees the usage and "
    "requests of all, the audit log and stored prompts, and decides whether those are stored.",
    Role.OWNER: "Also manages owners, and exports or deletes the tenant.",
}
"""What each role can do, beyond the one before it."""


def text_of(role: Role) -> str:
    """What a role can do, for who sees no others beside it."""
    at = RANK.index(role)
    before = f"All that a role of {RANK[at - 1].label.lower()} allows. " if at else ""
    return before + ROLES[role]


REMOVE = bulk.Action(
    "Remove",
    "Remove the selected members?",
    "They lose access at once. API keys they created keep working: revoke them under API keys.",
)
WITHDRAW = bulk.Action(
    "Withdraw", "Withdraw the selected invitations?", "Their links no longer work."
)


class RoleForm(forms.Form):
    """A role, one of those that the caller may grant."""

    role = forms.ChoiceField(initial=Role.DEVELOPER, widget=forms.RadioSelect)

    def __init__(self, caller: Caller, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["role"].choices = _roles_of(caller)  # type: ignore[attr-defined]


class InviteForm(RoleForm):
    """A new invitation."""

    note = forms.CharField(
        max_length=200,
        required=False,
        label="For",
        help_text="Who the invitation is for. Shown in the list of invitations.",
    )


@never_cache
@tenant_page(Permission.READ_MEMBERS)
def members(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The list; POST creates an invitation, whose link the list then shows once."""
    form = InviteForm(caller)
    if request.method == "POST":
        caller.require(Permission.EDIT_MEMBERS)
        form = InviteForm(caller, request.POST)
        if form.is_valid():
            with refusals_as_messages(request):
                link = _invite(request, caller, form)
                return shown_once.redirect(request, request.path, link)
    return _list(request, caller, form)


@require_POST
@tenant_page(Permission.EDIT_MEMBERS)
def change_role(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Give a member another role; one's own only with a confirmation."""
    member, form = _member(caller, pk), RoleForm(caller, request.POST)
    if not form.is_valid():
        messages.error(request, "You cannot assign this role.")
        return redirect("members", caller.tenant.slug)
    role = Role(form.cleaned_data["role"])
    with refusals_as_messages(request):
        if member.user == caller.user and request.POST.get("own") != "yes":
            raise Refused("Confirm that you want to change your own role.")
        member.change_role(role)
        messages.success(request, f"{member.user.username} now has the role {role.label.lower()}.")
    return redirect("members", caller.tenant.slug)


@require_POST
@tenant_page(Permission.EDIT_MEMBERS)
def remove(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """End somebody else's membership."""
    member = _member(caller, pk)
    with refusals_as_messages(request):
        _require_another(caller, member)
        member.remove()
        messages.success(request, f"{member.user.username} is no longer a member.")
    return redirect("members", caller.tenant.slug)


@require_POST
@tenant_page(Permission.EDIT_MEMBERS)
def remove_some(request: HttpRequest, caller: Caller) -> HttpResponse:
    """End the chosen memberships."""

    def one(id: str) -> None:
        member = _member(caller, bulk.number(id))
        _require_another(caller, member)
        member.remove()

    bulk.act(request, one, "member,members", "removed")
    return redirect("members", caller.tenant.slug)


@require_POST
@tenant_page(Permission.READ_MEMBERS)
def leave(request: HttpRequest, caller: Caller) -> HttpResponse:
    """End the caller's own membership."""
    member = get_object_or_404(caller.tenant.memberships, user=caller.user)
    with refusals_as_messages(request):
        member.remove()
        messages.success(request, f"You have left {caller.tenant.name}.")
        return redirect("console")
    return redirect("members", caller.tenant.slug)


@require_POST
@tenant_page(Permission.EDIT_SIGN_IN)
def require_second_factor(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Require a second factor of everybody who opens the tenant, or no longer."""
    tenant, required = caller.tenant, request.POST.get("required") == "yes"
    with refusals_as_messages(request):
        second_factor.require_own(request, required=required)
        tenant.second_factor_required = required
        tenant.save(update_fields=["second_factor_required"])
        rule = "requires a second factor now" if required else "no longer requires a second factor"
        messages.success(request, f"{tenant.name} {rule}.")
    return redirect("members", tenant.slug)


@never_cache
@require_POST
@tenant_page(Permission.EDIT_MEMBERS)
def resend(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Give an invitation a new link, which the list then shows once, in place of the old one."""
    invitation = _invitation(caller, pk)
    page = reverse("members", args=[caller.tenant.slug])
    with refusals_as_messages(request):
        return shown_once.redirect(request, page, _link(request, invitation.renew()))
    return redirect(page)


@require_POST
@tenant_page(Permission.EDIT_MEMBERS)
def withdraw(request: HttpRequest, caller: Caller, pk: int) -> HttpResponse:
    """Withdraw an invitation, so that its link no longer works."""
    invitation = _invitation(caller, pk)
    with refusals_as_messages(request):
        invitation.withdraw()
        messages.success(request, "Invitation withdrawn. Its link no longer works.")
    return redirect("members", caller.tenant.slug)


@require_POST
@tenant_page(Permission.EDIT_MEMBERS)
def withdraw_some(request: HttpRequest, caller: Caller) -> HttpResponse:
    """Withdraw the chosen invitations."""

    def one(id: str) -> None:
        _invitation(caller, bulk.number(id)).withdraw()

    bulk.act(request, one, "invitation,invitations", "withdrawn")
    return redirect("members", caller.tenant.slug)


def _invite(request: HttpRequest, caller: Caller, form: InviteForm) -> str:
    """Create the invitation of a valid form; returns its link."""
    given = form.cleaned_data
    assert isinstance(caller.user, User)
    _, token = Invitation.objects.invite(
        caller.tenant, role=Role(given["role"]), note=given["note"], by=caller.user
    )
    return _link(request, token)


def _link(request: HttpRequest, token: str) -> str:
    return request.build_absolute_uri(reverse("invitation", args=[token]))


def _list(request: HttpRequest, caller: Caller, form: InviteForm) -> HttpResponse:
    found = caller.tenant.memberships.select_related("user")
    factors = Authenticator.objects.filter(user=OuterRef("user"), type__in=second_factor.FACTORS)
    found = found.annotate(has_factor=Exists(factors))
    if words := words_of(request):
        found = found.filter(user__username__icontains=words)
    if (after := id_in_url(request, "after")) is not None:
        found = found.filter(pk__gt=after)
    rows, last = page_of(found)
    may_edit = caller.may(Permission.EDIT_MEMBERS)
    context = {
        "members": [(row, may_edit and _may_touch(caller, row.role)) for row in rows],
        "last": last,
        "words": words,
        "invitations": _invitations(caller) if may_edit else [],
        "roles": _roles_of(caller),
        "may_edit": may_edit,
        "may_require": caller.may(Permission.EDIT_SIGN_IN),
        "bulk": [REMOVE.of("members-remove-some", caller.tenant.slug)],
        "bulk_of_invitations": [WITHDRAW.of("members-withdraw-some", caller.tenant.slug)],
        "form": form,
    }
    return shown_once.render(request, "members.html", context, status=422 if form.errors else 200)


def _invitations(caller: Caller) -> list[tuple[Invitation, bool]]:
    """Open invitations, each with whether the caller may change it."""
    found = Invitation.objects.open().filter(tenant=caller.tenant).select_related("created_by")
    return [(row, _may_touch(caller, row.role)) for row in found]


def _roles_of(caller: Caller) -> list[tuple[str, str]]:
    """The roles that the caller may grant, each with its name and what it can do."""
    named = '{}<br><span class="help">{}</span>'
    return [
        (role.value, format_html(named, role.label, text))
        for role, text in ROLES.items()
        if _may_touch(caller, role)
    ]


def _may_touch(caller: Caller, role: str) -> bool:
    """Whether the caller may grant or remove this role; only owners do so for owners."""
    return role != Role.OWNER or caller.may(Permission.EDIT_OWNERS)


def _require_may_touch(caller: Caller, role: str) -> None:
    if role == Role.OWNER:
        caller.require(Permission.EDIT_OWNERS)


def _require_another(caller: Caller, member: Membership) -> None:
    """Members end their own membership only where the page says so."""
    if member.user == caller.user:
        raise Refused("To end your own membership, choose “Leave tenant”.")


def _member(caller: Caller, pk: int) -> Membership:
    """A member of the tenant whom the caller may change."""
    member = get_object_or_404(caller.tenant.memberships.select_related("user"), pk=pk)
    _require_may_touch(caller, member.role)
    return member


def _invitation(caller: Caller, pk: int) -> Invitation:
    """An invitation of the tenant that the caller may change."""
    invitation = get_object_or_404(caller.tenant.invitations, pk=pk)
    _require_may_touch(caller, invitation.role)
    return invitation
