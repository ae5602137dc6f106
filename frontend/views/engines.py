"""Whether a tenant's models are being served; reveals nothing about other tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from frontend.lists import address, words_of
from frontend.pages import tenant_page
from inference.link.engine_info import PREFILL
from tenants.api.endpoints.fleet import engines as connected
from tenants.fleet.gateways import gateways
from tenants.models import AdapterVersion, BaseModel, Tenant
from tenants.naming import lora_name
from tenants.permissions import Caller, Permission

SHORT = 8
"""Characters of a digest that are shown of a version that no longer exists."""


@dataclass(frozen=True, slots=True)
class ResidentAdapter:
    """A version that is loaded on an engine: by its number, or the start of its digest if it has
    been deleted, and then without a page."""

    tenant: str
    adapter: str
    version: str
    digest: str
    url: str = ""

    def matches(self, words: str) -> bool:
        return words.lower() in f"{self.tenant}/{self.adapter}@{self.version}"


@dataclass(frozen=True, slots=True)
class ResidentList:
    """The versions that are loaded on one engine: those that match the filter, and how many there
    are in all."""

    shown: Sequence[ResidentAdapter]
    count: int

    @classmethod
    def of(
        cls, names: Sequence[str], known: Mapping[str, ResidentAdapter], words: str
    ) -> ResidentList:
        """From the LoRA names that the engine reports, and `residents` of them."""
        return cls([known[one] for one in names if known[one].matches(words)], len(names))


def residents(
    engines: Iterable[Mapping[str, Any]], versions: QuerySet[AdapterVersion]
) -> dict[str, ResidentAdapter]:
    """What is loaded on these engines, by LoRA name, in one query; `versions` are those that the
    caller may see."""
    names = {name for engine in engines for name in engine["resident_adapters"]}
    parts = {name: _parts(name) for name in names}
    found = versions.filter(digest__in={digest for _, _, digest in parts.values()})
    fields = "adapter__tenant__slug", "adapter__name", "digest", "number"
    numbers = {
        lora_name(slug, adapter, digest): str(number)
        for slug, adapter, digest, number in found.order_by().values_list(*fields)
    }
    return {
        name: ResidentAdapter(
            slug,
            adapter,
            numbers.get(name, digest[:SHORT]),
            digest,
            address("adapters-version", slug, adapter, numbers[name]) if name in numbers else "",
        )
        for name, (slug, adapter, digest) in parts.items()
    }


def _parts(name: str) -> tuple[str, str, str]:
    """Slug, adapter and digest of a LoRA name."""
    slug, _, rest = name.partition("/")
    adapter, _, digest = rest.partition("@")
    return slug, adapter, digest


@require_GET
@tenant_page(Permission.READ_ADAPTERS)
def engines(request: HttpRequest, caller: Caller) -> HttpResponse:
    """The engines; `?q=` filters the adapters loaded on them."""
    return render(request, "engines/engines.html", state(caller.tenant, words_of(request)))


def takes_work(engine: Mapping[str, Any]) -> bool:
    """Whether any request of its pool may go to it now (`ModelInfo.serves`)."""
    return not (engine["draining"] or engine["overflow"] or engine["role"] == PREFILL)


def state(tenant: Tenant, words: str) -> dict[str, Any]:
    """The engines of each base model, and which of the tenant's adapters are loaded on them."""
    found = [connected.shown_to({tenant.slug}, engine) for engine in gateways().fleet().engines]
    known = residents(found, AdapterVersion.objects.filter(adapter__tenant=tenant))
    rows = [
        (
            engine,
            datetime.fromisoformat(engine["connected_at"]),
            ResidentList.of(engine["resident_adapters"], known, words),
        )
        for engine in sorted(found, key=lambda engine: str(engine["id"]))
    ]
    served = {engine["base_model"] for engine in found if takes_work(engine)}
    used = BaseModel.objects.filter(Exists(tenant.adapters.filter(base_model=OuterRef("pk"))))
    missing = [name for name in used.values_list("name", flat=True) if name not in served]
    return {"rows": rows, "missing": missing, "words": words}
