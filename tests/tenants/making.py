"""Factories of tenants and of what belongs to them."""

from __future__ import annotations

import hashlib
import itertools
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from inference.link.engine_info import ModelInfo
from tenants.batch_states import Status
from tenants.directory import pools
from tenants.models import (
    Adapter,
    AdapterVersion,
    ApiKey,
    BaseModel,
    Batch,
    GatewayProcess,
    Membership,
    Purpose,
    Rollout,
    State,
    Tenant,
    User,
)
from tests.storing import make_bytes

_numbers = itertools.count(1)


def make_user(name: str = "", **fields: Any) -> User:
    return User.objects.create_user(name or f"user{next(_numbers)}", **fields)


def make_tenant(slug: str = "", *, internal: bool = False) -> Tenant:
    slug = slug or f"tenant{next(_numbers)}"
    return Tenant.objects.create(slug=slug, name=slug.title(), internal=internal)


def make_member(tenant: Tenant, role: str) -> User:
    user = make_user()
    Membership.objects.create(user=user, tenant=tenant, role=role)
    return user


def make_base(name: str = "base") -> BaseModel:
    defaults = {"max_model_len": 512, "max_lora_rank": 16, "engine": "vllm"}
    return BaseModel.objects.get_or_create(name=name, defaults=defaults)[0]


def make_base_of(info: ModelInfo) -> BaseModel:
    """The base model of an engine that describes it so, as a gateway records it."""
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in pools.NOTE:
            cursor.execute(statement, pools.parameters(info))
    return BaseModel.objects.get(name=info.name)


def make_rollout(base: BaseModel, **plan: Any) -> Rollout:
    """A rollout of a waiting revision, to replace one that serves."""
    infos = [
        ModelInfo(base.name, 512, 4, 16, 4096, {"m.q_proj": (8, 8)}, "vllm", "r1", version)
        for version in ("1", "2")
    ]
    for info in infos:
        make_base_of(info)
    return Rollout.objects.start(base.revisions.get(digest=infos[1].pool_digest()), **plan)


def make_gateway(url: str) -> GatewayProcess:
    """A gateway with a heartbeat of now."""
    return GatewayProcess.objects.create(url=url, heartbeat_at=timezone.now())


def make_adapter(tenant: Tenant, name: str = "support") -> Adapter:
    return Adapter.objects.create(tenant=tenant, name=name, base_model=make_base())


def make_version(adapter: Adapter, digest: str = "", state: State = State.READY) -> AdapterVersion:
    """A version in this state; no alias points at it."""
    digest = digest or hashlib.sha256(str(next(_numbers)).encode()).hexdigest()
    version, _ = adapter.add_version(digest, size_bytes=1000, folder=digest)
    AdapterVersion.objects.filter(pk=version.pk).update(state=state)
    version.refresh_from_db()
    return version


def make_batch(key: ApiKey, **fields: Any) -> Batch:
    """A running batch with a file of requests."""
    file = key.tenant.files.create(purpose=Purpose.BATCH, filename="lines.jsonl", size_bytes=3)
    make_bytes(file.pk, b"{}\n")
    given: dict[str, Any] = {
        "status": Status.IN_PROGRESS,
        "total": 10,
        "expires_at": timezone.now() + timedelta(hours=1),
    }
    return Batch.objects.create(
        tenant=key.tenant,
        key=key,
        input_file=file,
        operation="chat",
        endpoint="/v1/chat/completions",
        **(given | fields),
    )


def make_key(tenant: Tenant, *scopes: str, **fields: Any) -> tuple[ApiKey, str]:
    return ApiKey.objects.issue(tenant, name="a key", scopes=scopes or ["inference"], **fields)


class NoBudgets:
    """A `Spent` for tests without budgets."""

    async def spent(self, scope_id: str, start: datetime, end: datetime) -> tuple[int, int]:
        raise AssertionError("nobody has a budget here")
