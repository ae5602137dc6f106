"""All tenants: search, create, set weights, suspend."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Count, DecimalField, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.views.decorators.http import require_http_methods, require_POST

from frontend import bulk
from frontend.lists import Sort, page_of, words_of
from frontend.pages import operator_page, refusals_as_messages
from frontend.views.limits import shown
from tenants.adapters.quota import Storage
from tenants.limits import ceilings
from tenants.limits.kinds import TENANT_KINDS
from tenants.models import (
    Adapter,
    ApiKey,
    LimitScope,
    Membership,
    Tenant,
    TenantDeletion,
    UsageMonth,
)
from tenants.models.accounts import TenantQuerySet
from tenants.sizes import parse_size, size
from tenants.utc import month_start

if TYPE_CHECKING:
    TenantFormBase = forms.ModelForm[Tenant]
else:
    TenantFormBase = forms.ModelForm

SORTS = {
    "slug": "Slug",
    "name": "Name",
    "status": "State",
    "weight": "Weight",
    "cost": "Cost this month",
    "created_at": "Created",
}
NUMBERS = frozenset({"weight", "cost"})
SECTIONS = {
    "members": "Members",
    "keys": "API keys",
    "adapters": "Adapters",
    "limits": "Limits and ceilings",
    "usage": "Usage",
    "audit": "Audit log",
    "data": "Export and deletion",
}
"""The pages of a tenant that are linked from here."""
MAX_SIZE = 1 << 50
"""1,024 TB."""
STATES = {
    "": ("Active or suspended", Q(deletion=None)),
    "active": ("Active", Q(status="active")),
    "suspended": ("Suspended", Q(status="suspended", deletion=None)),
    "being-deleted": ("Being deleted", Q(deletion__isnull=False, deletion__ended_at=None)),
    "deleted": ("Deleted", Q(deletion__ended_at__isnull=False)),
    "any": ("Any state", Q()),
}
"""What `?status=` lists."""
SUSPEND = bulk.Action(
    "Suspend",
    "Suspend the selected tenants?",
    "All their requests are refused and their open streams end within a second. Their members get "
    "read-only access. Nothing is deleted.",
)
ACTIVATE = bulk.Action(
    "Activate",
    "Activate the selected tenants?",
    "Their keys work again, and what they use is billed.",
    danger=False,
)


class NewTenant(TenantFormBase):
    class Meta:
        model = Tenant
        fields = ["name", "slug", "weight"]
        help_texts = {
            "slug": "Used in URLs. It cannot be changed later.",
        }
        widgets = {"slug": forms.TextInput({"data-proposed-from": "name"})}


class SizeField(forms.Field):
    """A number of bytes, entered and shown with a unit."""

    def to_python(self, value: Any) -> int | None:
        if not value:
            return None
        try:
            found = parse_size(str(value))
        except ValueError as error:
            raise ValidationError("Enter a size with its unit, for example 25 GB.") from error
        if found > MAX_SIZE:
            raise ValidationError(f"{size(found)} is too much; at most {size(MAX_SIZE)}.")
        return found

    def prepare_value(self, value: Any) -> Any:
        """Rounded only as far as saving it unchanged changes nothing."""
        if not isinstance(value, int):
            return value
        shown = size(value).replace("\u00a0", " ")
        return shown if parse_size(shown) == value else f"{value} bytes"


class TenantForm(TenantFormBase):
    max_stored_bytes = SizeField(
        required=False,
        label="Storage limit",
        help_text="For example 25 GB. Leave empty for the installation's default.",
    )

    class Meta:
        model = Tenant
        fields = ["name", "weight", "max_stored_bytes", "max_versions"]
        labels = {"max_versions": "Adapter version limit"}
        help_texts = dict.fromkeys(labels, "Leave empty for the installation's default.")


@require_http_methods(["GET", "POST"])
@operator_page
def tenants(request: HttpRequest) -> HttpResponse:
    """The list; POST creates a tenant."""
    form = NewTenant()
    if request.method == "POST":
        form = NewTenant(request.POST)
        if form.is_valid():
            made = form.save()
            messages.success(
                request,
                format_html(
                    '<a href="{}">{}</a> created. <a href="{}">Invite its first owner</a>',
                    reverse("overview", args=[made.slug]),
                    made.name,
                    reverse("members", args=[made.slug]),
                ),
            )
            return redirect("operate_tenants-edit", made.slug)
    return _list(request, form)


@require_http_methods(["GET", "POST"])
@operator_page
def edit(request: HttpRequest, tenant_slug: str) -> HttpResponse:
    """One tenant: its name and weight, and links to its pages."""
    tenant = get_object_or_404(_with_counts(Tenant.objects.all()), slug=tenant_slug)
    form = TenantForm(request.POST or None, instance=tenant)
    if request.method == "POST" and tenant.deleted:
        raise PermissionDenied("The tenant is deleted.")
    if request.method == "POST" and form.is_valid():
        tenant.save(update_fields=list(form.fields))  # it may have been suspended meanwhile
        messages.success(request, f"{tenant.name} saved.")
        return redirect("operate_tenants-edit", tenant.slug)
    context = {
        "tenant": tenant,
        # An invalid form has changed the object, not the row.
        "name": form.initial["name"],
        "form": form,
        "sections": _sections(tenant.slug),
        "storage": Storage.of(tenant),
        "ceilings": _ceilings(tenant),
        "deletion": TenantDeletion.objects.of(tenant),
    }
    return render(request, "operate/tenant.html", context, status=422 if form.errors else 200)


@require_POST
@operator_page
def suspend(request: HttpRequest, tenant_slug: str) -> HttpResponse:
    """Refuse all the tenant's requests; its open streams end."""
    return _set_status(request, tenant_slug, Tenant.Status.SUSPENDED, "Its open streams end now.")


@require_POST
@operator_page
def activate(request: HttpRequest, tenant_slug: str) -> HttpResponse:
    return _set_status(request, tenant_slug, Tenant.Status.ACTIVE, "Its keys work again.")


@require_POST
@operator_page
def set_status_of_some(request: HttpRequest, status: Tenant.Status) -> HttpResponse:
    """Suspend or activate the chosen tenants."""

    def one(id: str) -> None:
        get_object_or_404(Tenant.objects.customers(), pk=bulk.number(id)).set_status(status)

    bulk.act(request, one, "tenant,tenants", status)
    return redirect("operate_tenants")


def _set_status(
    request: HttpRequest, slug: str, status: Tenant.Status, follows: str
) -> HttpResponse:
    tenant = get_object_or_404(Tenant, slug=slug)
    with refusals_as_messages(request):
        tenant.set_status(status)
        messages.success(request, f"{tenant.name} is {status}. {follows}")
    return redirect("operate_tenants-edit", tenant.slug)


def _list(request: HttpRequest, form: NewTenant) -> HttpResponse:
    words, status = words_of(request), request.GET.get("status", "")
    sort = Sort.of(request.GET.get("sort", ""), SORTS, unique="slug")
    found = _with_cost(Tenant.objects.customers()).select_related("deletion")
    if words:
        found = found.filter(Q(slug__icontains=words) | Q(name__icontains=words))
    status = status if status in STATES else ""
    found = found.filter(STATES[status][1])
    rows, last = page_of(sort.behind(found, words_of(request, "after")))
    context = {
        "tenants": rows,
        "last": last,
        "columns": sort.columns(SORTS, request.GET, numbers=NUMBERS).values(),
        "sort": sort,
        "words": words,
        "status": status,
        "statuses": [(name, title) for name, (title, _) in STATES.items()],
        "filtered": bool(words or status),
        "form": form,
        "bulk": [
            SUSPEND.of("operate_tenants-suspend-some"),
            ACTIVATE.of("operate_tenants-activate-some"),
        ],
    }
    return render(request, "operate/tenants.html", context, status=422 if form.errors else 200)


def _with_cost(found: TenantQuerySet) -> TenantQuerySet:
    """Annotate `cost`, of this UTC month so far, in pico-units."""
    usage = UsageMonth.objects.filter(tenant=OuterRef("pk"), month=month_start(timezone.now()))
    cost = usage.order_by().values("tenant").annotate(sum=Sum("cost")).values("sum")
    whole: DecimalField[Decimal, Decimal] = DecimalField(max_digits=38, decimal_places=0)
    return found.annotate(cost=Coalesce(Subquery(cost), Decimal(0), output_field=whole))


def _with_counts(found: TenantQuerySet) -> TenantQuerySet:
    """Annotate `cost` and the numbers of members, live keys and adapters."""
    return _with_cost(found).annotate(
        member_count=_count(Membership.objects.all()),
        key_count=_count(ApiKey.objects.with_text().filter(revoked_at=None)),
        adapter_count=_count(Adapter.objects.all()),
    )


def _count(rows: QuerySet[Any]) -> Coalesce:
    """Count a tenant's rows in a subquery; joins would multiply the counts."""
    own = rows.filter(tenant=OuterRef("pk")).order_by().values("tenant")
    return Coalesce(Subquery(own.annotate(count=Count("pk")).values("count")), 0)


def _ceilings(tenant: Tenant) -> list[tuple[str, str, bool]]:
    """The tenant's ceilings: limit, value, and whether they are its own or the defaults."""
    sets = LimitScope(tenant).sets()
    own = sets.get(ceilings.OPERATOR, {})
    return [
        (TENANT_KINDS[name].label, shown(TENANT_KINDS[name], limit), own.get(name) is not None)
        for name, limit in ceilings.ceiling(sets, TENANT_KINDS).items()
        if limit is not None
    ]


def _sections(slug: str) -> dict[str, Any]:
    """URLs of the tenant's pages, by title."""
    found = {"Overview": reverse("overview", args=[slug])}
    for page, title in SECTIONS.items():
        try:
            found[title] = reverse(page, args=[slug])
        except NoReverseMatch:
            continue
    return found
