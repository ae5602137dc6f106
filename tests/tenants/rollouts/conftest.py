"""A base model with two revisions, tenants with adapters, and a gateway that answers probes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
from django.utils import timezone

from inference.gateway.measuring.sums import BUCKETS
from inference.link.engine_info import ModelInfo
from tenants.models import (
    LIVE,
    AdapterVersion,
    BaseModel,
    GatewayProcess,
    IsolationCheck,
    PoolRevision,
    RevisionMinute,
    Standing,
    State,
    Tenant,
    Trial,
)
from tests.adapters.conftest import FakeGateway, gateway, no_jobs
from tests.tenants.making import make_base_of, make_tenant, make_version

__all__ = ["FakeGateway", "Pool", "gateway", "no_jobs", "pool"]

INFO = ModelInfo("base", 512, 4, 16, 4096, {"m.q_proj": (8, 8)}, "vllm", "r1", "1")
NEWER = msgspec.structs.replace(INFO, engine_version="2")


@dataclass
class Pool:
    """A base model with two revisions, and what tests change around it."""

    base: BaseModel
    old: PoolRevision
    new: PoolRevision

    def tenant(self, slug: str = "", *, rank: int = 8) -> Tenant:
        """A tenant with a live adapter that runs on the old revision."""
        tenant = make_tenant(slug)
        self.version(tenant, rank=rank)
        return tenant

    def version(
        self, tenant: Tenant, name: str = "support", *, rank: int = 8, alias: str = LIVE
    ) -> AdapterVersion:
        adapter, _ = tenant.adapters.get_or_create(name=name, base_model=self.base)
        version = make_version(adapter)
        config = {"r": rank, "target_modules": ["q_proj"]}
        AdapterVersion.objects.filter(pk=version.pk).update(config=config, state=State.READY)
        version.refresh_from_db()
        adapter.aliases.create(name=alias, version=version)
        Trial.objects.create(version=version, revision=self.old, passed=True)
        return version

    def tried(self, tenant: Tenant, *, passed: bool = True) -> None:
        """Record that all its versions were tried on the new revision."""
        for version in AdapterVersion.objects.filter(adapter__tenant=tenant):
            Trial.objects.create(version=version, revision=self.new, passed=passed)

    def engines(self, **counts: int) -> None:
        """Set how many engines of `old` and `new` the gateway reports."""
        found = {getattr(self, name).digest: count for name, count in counts.items()}
        GatewayProcess.objects.update(engines=found)

    def met(self, revision: PoolRevision, requests: int, errors: int = 0) -> None:
        """Record that the revision got this many requests in the present minute."""
        RevisionMinute.objects.create(
            revision=revision,
            minute=timezone.now().replace(second=0, microsecond=0),
            requests=requests,
            errors=errors,
            first_tokens=[requests] + [0] * (BUCKETS - 1),
        )

    def isolated(self, *, passed: bool | None = True) -> IsolationCheck:
        return IsolationCheck.objects.create(
            base_model=self.base.name, passed=passed, revision=self.new.digest
        )


@pytest.fixture
def pool(db: None) -> Iterator[Pool]:
    for info in (INFO, NEWER):
        base = make_base_of(info)
    old, new = base.revisions.order_by("pk")
    assert (old.standing, new.standing) == (Standing.SERVING, Standing.WAITING)
    yield Pool(base, old, new)
