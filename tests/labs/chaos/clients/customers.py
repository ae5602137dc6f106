"""The tenants of a run: keys, adapters, prices, and limits of every kind."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from django.core.files.base import ContentFile

import demo
from inference.agent.engines.profile import POOLING, EngineProfile
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.content import CONFIG, WEIGHTS, digest_of
from tenants.adapters import store
from tenants.adapters.storage import storage
from tenants.content import retention
from tenants.models import (
    Adapter,
    AdapterVersion,
    ApiKey,
    BaseModel,
    LimitSet,
    PoolRevision,
    Price,
    State,
    Tenant,
    Trial,
    User,
)
from tenants.models.usage.prices import Tier
from tests.labs.chaos.stage import EMBEDDING, MODEL
from tests.tenants.making import make_base_of

BASE_PRICE = (2_000_000, 1_000_000, 6_000_000)
FINE_PRICE = (3_000_000, 1_000_000, 9_000_000)
"""Prices of prompt, cached prompt and output tokens. Whole micro-units per token, because Redis
counts in those."""
TRAINING_PRICE = 5_000_000
"""Of a token that a fine-tuning job trained on."""
SCOPES = ["inference", "adapters:write"]
ADAPTERS = ("plain", "fine")
POLL_S = 0.2
OPERATOR = "operator"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
CONTENT_DAYS = 1
"""All tenants store prompts and answers for so many days, because responses in the background need
it."""


BROKE = "broke"
"""The tenant that exhausts its budget in the course of a run."""
BROKE_SPENDS = 300
"""Its budget in micro-units of the currency per second of the run: half of what it would spend."""


@dataclass(frozen=True)
class Plan:
    """A tenant's limits. `of_key` limits its second key, `of_adapter` its second adapter."""

    slug: str
    of_tenant: dict[str, int] = field(default_factory=dict)
    of_key: dict[str, int] = field(default_factory=dict)
    of_adapter: dict[str, int] = field(default_factory=dict)
    weight: float = 1.0


PLANS = (
    Plan("free-of-limits", of_adapter={"concurrent_streams": 2}, weight=2.0),
    Plan("brisk", {"requests_per_minute": 30}, of_key={"requests_per_minute": 15}),
    Plan(
        "wordy",
        {"tokens_per_minute": 9_000, "output_tokens_per_minute": 5_000},
        of_key={"prompt_tokens_per_minute": 1_500},
    ),
    Plan("narrow", {"concurrent_streams": 2}),
    Plan("thrifty", {"tokens_per_month": 10**9, "cost_per_day": 10**9}, {"tokens_per_day": 10**9}),
    Plan(BROKE, {"cost_per_month": 10**9, "tokens_per_day": 10**9}),
)


def _periods(limits: dict[str, int]) -> set[str]:
    """The periods for which these limits have a budget."""
    return {name.rpartition("_")[2] for name in limits} & {"day", "month"}


BUDGETS = sum(len(_periods(plan.of_tenant)) + len(_periods(plan.of_key)) for plan in PLANS)
"""Number of budgets: a tenant or key has one for each period that its limits name."""


@dataclass(frozen=True, slots=True)
class Customer:
    """A tenant as its programs know it."""

    slug: str
    tenant_id: int
    keys: tuple[str, ...]
    models: tuple[str, ...]
    """Models that generate; `embedding` is the name of one that embeds."""
    embedding: str


def seed(seconds: float) -> list[Customer]:
    """Fill an empty database, for a run of `seconds`."""
    base = _base(demo.BASE, MODEL)
    _base(demo.EMBEDDING, EMBEDDING, runner=POOLING)
    User.objects.create_superuser(OPERATOR)
    found = [_customer(plan, base) for plan in PLANS]
    for tenant in Tenant.objects.all():
        retention.keep_for(tenant, CONTENT_DAYS)
    money = round(BROKE_SPENDS * seconds)
    LimitSet.objects.filter(tenant__slug=BROKE).update(cost_per_month=money)
    return found


def _base(folder: Path, name: str, **profile: str) -> BaseModel:
    made = EngineProfile.here(str(folder), served_name=name, **profile)
    base = make_base_of(SyntheticEngine.of(made).info)
    _price(BASE_PRICE, base_model=base)
    Price.objects.create(
        base_model=base, tier=Tier.TRAINING, starts_at=LONG_AGO, prompt=TRAINING_PRICE,
        cached_prompt=0, output=0,
    )  # fmt: skip
    return base


def let_adapters_run(engine: str, timeout_s: float) -> None:
    """Record that each adapter passed on engines of this kind, as a worker would, because none runs
    yet. Waits until the first engine has joined: then a gateway records the kind."""
    end = time.monotonic() + timeout_s
    revisions = PoolRevision.objects.filter(base_model__name=MODEL)
    while not revisions.filter(engine=engine).exists():
        assert time.monotonic() < end, f"no {engine} engine has joined"
        time.sleep(POLL_S)
    Trial.objects.bulk_create(
        Trial(version=version, revision=revision, passed=True)
        for version in AdapterVersion.objects.all()
        for revision in revisions.all()
    )


def prices(customers: list[Customer]) -> dict[tuple[int, str], tuple[int, int, int]]:
    """Prices in force, by tenant and adapter; the empty name is the base model."""
    of_adapter = {"": BASE_PRICE, "plain": BASE_PRICE, "fine": FINE_PRICE}
    return {(one.tenant_id, name): price for one in customers for name, price in of_adapter.items()}


def requests_per_minute(customers: list[Customer]) -> dict[int, int]:
    """The limits on whole tenants, by tenant."""
    limits = {plan.slug: plan.of_tenant.get("requests_per_minute") for plan in PLANS}
    return {one.tenant_id: limit for one in customers if (limit := limits[one.slug]) is not None}


def budgeted(customers: list[Customer]) -> list[Customer]:
    """Customers with a budget of any scope."""
    have = {plan.slug for plan in PLANS if _periods(plan.of_tenant) or _periods(plan.of_key)}
    return [one for one in customers if one.slug in have]


def _customer(plan: Plan, base: BaseModel) -> Customer:
    tenant = Tenant.objects.create(slug=plan.slug, name=plan.slug, weight=plan.weight)
    issued = [
        ApiKey.objects.issue(tenant, name=lane, scopes=SCOPES, lane=lane)
        for lane in ("interactive", "batch")
    ]
    adapters = [_adapter(tenant, base, name) for name in ADAPTERS]
    _price(FINE_PRICE, adapter=adapters[1])
    for limits, scope in (
        (plan.of_tenant, {}),
        (plan.of_key, {"key": issued[1][0]}),
        (plan.of_adapter, {"adapter": adapters[1]}),
    ):
        if limits:
            LimitSet.objects.create(tenant=tenant, author="operator", **scope, **limits)
    return Customer(
        plan.slug, tenant.pk, tuple(text for _, text in issued), (MODEL, *ADAPTERS), EMBEDDING
    )


def _price(price: tuple[int, int, int], **of: BaseModel | Adapter) -> None:
    prompt, cached_prompt, output = price
    Price.objects.create(
        starts_at=LONG_AGO,
        prompt=prompt,
        cached_prompt=cached_prompt,
        output=output,
        **of,
    )


def _adapter(tenant: Tenant, base: BaseModel, name: str) -> Adapter:
    """One of the demo's adapters, made unique by trailing newlines in its configuration."""
    adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=base)
    folder = list(demo.ADAPTERS.values())[tenant.pk % len(demo.ADAPTERS)]
    config = (folder / CONFIG).read_bytes() + b"\n" * (2 * tenant.pk + (name == "fine"))
    weights = (folder / WEIGHTS).read_bytes()
    sums = [hashlib.sha256(data).hexdigest() for data in (config, weights)]
    digest = digest_of(*sums)
    kept = store.new_folder(adapter, digest)
    for file, data in ((CONFIG, config), (WEIGHTS, weights)):
        storage().save(f"{kept}/{file}", ContentFile(data))
    version = AdapterVersion.objects.create(
        adapter=adapter,
        number=1,
        digest=digest,
        state=State.READY,
        size_bytes=len(config) + len(weights),
        folder=kept,
        config=json.loads(config),
    )
    adapter.promote(version)
    return adapter
