"""A tenant that has something of everything."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.files.base import ContentFile
from django.db import models
from django.utils import timezone

from inference.content import CONFIG, WEIGHTS
from tenants.adapters import store
from tenants.adapters.storage import ORIGINALS
from tenants.content import retention, sealing
from tenants.content.sealing import Location
from tenants.housekeeping import make_partitions
from tenants.models import (
    AdapterVersion,
    AlertRule,
    BackgroundResponse,
    BatchLine,
    Conversation,
    IdempotentAnswer,
    Invitation,
    LimitSet,
    Membership,
    Muted,
    Notification,
    Price,
    PromotionGate,
    PromptSet,
    Purpose,
    ReadMark,
    RefusedRequest,
    RequestHour,
    RequestMinute,
    RequestScore,
    RequestTag,
    Role,
    Rollout,
    RolloutTenant,
    Route,
    SavedPrompt,
    SavedView,
    SetRun,
    Split,
    SplitRequest,
    StoredContent,
    Target,
    Tenant,
    TenantExport,
    TotalHour,
    TotalMinute,
    Trial,
    Turn,
    UploadSession,
    UsageEvent,
    UsageRollup,
    User,
)
from tenants.models.annotations import ScoreValue
from tenants.models.notifications import NotificationKind
from tenants.naming import REQUEST
from tests.storing import make_bytes, make_chunk
from tests.tenants.making import (
    make_adapter,
    make_batch,
    make_eval,
    make_key,
    make_rollout,
    make_user,
    make_version,
)


@dataclass(frozen=True)
class Furnished:
    """The tenant, its owner, and texts that nobody may find: secrets in every form."""

    tenant: Tenant
    owner: User
    secrets: list[str]


def furnish(tenant: Tenant, mark: str) -> Furnished:
    """Give the tenant a row in each table that can have one of it, with files; `mark` is in all
    its texts."""
    make_partitions()
    owner = make_user(f"owner-{mark}", email=f"{mark}@example.com")
    member = Membership.objects.create(user=owner, tenant=tenant, role=Role.OWNER)
    key, text = make_key(tenant)
    _, token = Invitation.objects.invite(tenant, role=Role.VIEWER, note=mark, by=owner)
    version = _adapter(tenant, mark)
    for scope in ({}, {"key": key}, {"adapter": version.adapter}):
        LimitSet.objects.create(tenant=tenant, author="tenant", requests_per_minute=5, **scope)
    batch = make_batch(key)
    BatchLine.objects.create(batch=batch, number=1, status_code=200, body=f'"{mark}"'.encode())
    _files(tenant, mark)
    _tuning(key, version, mark)
    _eval(tenant, key, mark)
    target = Target.objects.add(tenant, "https://a.example/" + mark, ["adapter.ready"], owner)
    kind = NotificationKind.ADAPTER_READY
    Notification.objects.post(kind, {"adapter": mark}, tenant=tenant)
    ReadMark.objects.create(user=owner, tenant=tenant, until=timezone.now())
    of_request = (tenant, mark, timezone.now(), owner)
    RequestTag.objects.put(*of_request, mark)
    RequestScore.objects.put(
        *of_request, name="quality", value=ScoreValue.of(True), comment=f"comment of {mark}"
    )
    AlertRule.objects.add(tenant, owner, name=mark, metric="ttft_p95", threshold=900)
    Muted.objects.create(user=owner, tenant=tenant, kinds=["adapter.ready"])
    _saved(member, mark)
    _content(tenant, key, mark)
    IdempotentAnswer.objects.create(
        key=key, name=mark, body_digest=b"d" * 32, request_id=mark, answer=mark.encode(),
        claimed_until=timezone.now(), created_at=timezone.now(),
    )  # fmt: skip
    _usage(tenant, key.pk, version, mark)
    hidden = [text, token, target.secrets[0], bytes(key.secret_hmac).hex()]
    return Furnished(tenant, owner, [*hidden, bytes(tenant.cache_secret).hex()])


def _adapter(tenant: Tenant, mark: str) -> AdapterVersion:
    version = make_version(make_adapter(tenant, f"adapter-{mark}"))
    folder = store.new_folder(version.adapter, version.digest)
    for name in (CONFIG, WEIGHTS, f"{ORIGINALS}/{CONFIG}"):
        store.save(folder, [(name, ContentFile(f"{name} {mark}".encode()))])
    AdapterVersion.objects.filter(pk=version.pk).update(
        folder=folder, converted={CONFIG: ["changed"]}
    )
    version.adapter.promote(version)
    price = {"prompt": 1, "cached_prompt": 1, "output": 1}
    Price.objects.create(adapter=version.adapter, starts_at=timezone.now(), **price)
    rollout = Rollout.objects.first() or make_rollout(version.adapter.base_model)
    RolloutTenant.objects.create(rollout=rollout, tenant=tenant, turn=Turn.LAST)
    Trial.objects.create(version=version, revision=rollout.revision, passed=True)
    _split(version, mark)
    PromotionGate.objects.put(version.adapter, "gated", make_eval(tenant, f"gate {mark}"), 0.5)
    Route.objects.create(tenant=tenant, name=f"route-{mark}".lower(), options=["base", mark])
    return version


def _split(version: AdapterVersion, mark: str) -> None:
    second = make_version(version.adapter)
    AdapterVersion.objects.filter(pk=second.pk).update(folder="")
    guards = [{"kind": "score", "name": mark}]
    split = Split.objects.start(version.adapter.aliases.get(), second, None, guards=guards)
    SplitRequest.objects.create(
        split=split, request_id=f"request of {mark}", candidate=True, weight=5, failed=False,
        cut=False, ended_at=timezone.now(),
    )  # fmt: skip


def _files(tenant: Tenant, mark: str) -> None:
    file = tenant.files.create(purpose=Purpose.EVALS, filename=mark, size_bytes=9)
    upload = tenant.file_uploads.create(
        purpose=Purpose.EVALS, filename=mark, size_bytes=9, expires_at=timezone.now()
    )
    part = upload.parts.create(size_bytes=9)
    export = TenantExport.objects.ask(tenant, by=mark, content=True)
    for id in (file.pk, part.pk, export.pk):
        make_bytes(id, f"bytes of {mark}".encode())
    session = UploadSession.objects.create(
        tenant=tenant, adapter_name=mark, file_name=mark, metadata=mark, length_bytes=9
    )
    make_chunk(session, f"bytes of {mark}".encode())


def _tuning(key: Any, version: AdapterVersion, mark: str) -> None:
    tenant = version.adapter.tenant
    file = tenant.files.create(purpose=Purpose.FINE_TUNE, filename=mark, size_bytes=9)
    make_bytes(file.pk, f"bytes of {mark}".encode())
    job = tenant.tuning_jobs.create(
        key=key, base_model=version.adapter.base_model, training_file=file, seed=1, suffix=mark,
        hyperparameters={}, metadata={"for": mark},
    )  # fmt: skip
    make_bytes(job.pk, f"bytes of {mark}".encode())
    job.report(f"event of {mark}")
    job.checkpoints.create(step=1, metrics={"train_loss": 1.0})


def _eval(tenant: Tenant, key: Any, mark: str) -> None:
    file = tenant.files.create(purpose=Purpose.EVALS, filename=mark, size_bytes=9)
    make_bytes(file.pk, f"bytes of {mark}".encode())
    made = tenant.evals.create(name=mark, config={"item_schema": {}}, criteria=[])
    run = made.runs.create(key=key, name=mark, source={}, model=mark, file=file, seals={})
    run.items.create(number=1, status="passed", body=f'"{mark}"')


def _saved(member: Membership, mark: str) -> None:
    SavedView.objects.keep(member, mark, query="q=1")
    SavedPrompt.objects.keep(member, mark, text=mark)
    kept = PromptSet.objects.keep(member, mark, prompts=[mark])
    SetRun.objects.create(
        prompt_set=kept, member=member, key=uuid.uuid4(), compared=["base"], choices=["A"],
        at=timezone.now(),
    )  # fmt: skip
    Conversation.objects.keep(member, mark, f'["{mark}"]')


def _content(tenant: Tenant, key: Any, mark: str) -> None:
    retention.keep_for(tenant, 7)
    live = retention.live_key(tenant)
    assert live is not None and live.wrapped is not None
    cipher = sealing.tenant_key([settings.CONTENT_KEY], tenant.pk, bytes(live.wrapped))
    place, now = Location(tenant.pk, REQUEST, f"request-{mark}"), timezone.now()
    stored = StoredContent.objects.create(
        tenant=tenant, kind=place.kind, name=place.name, content_key=live, at=now,
        expires_at=now + timedelta(days=1), data=cipher.seal(place, f"prompt of {mark}".encode()),
    )  # fmt: skip
    BackgroundResponse.objects.create(
        id=f"resp_{mark}", tenant=tenant, key=key, content=stored, size_bytes=1,
        seal="s", created_at=now, expires_at=now,
    )  # fmt: skip


def _usage(tenant: Tenant, key_id: int, version: AdapterVersion, mark: str) -> None:
    now = timezone.now()
    tokens = {
        "prompt_tokens": 3, "cached_tokens": 1, "completion_tokens": 2, "reasoning_tokens": 0,
        "cost": 7,
    }  # fmt: skip
    name = version.adapter.name
    whose = {"tenant": tenant, "key_id": key_id, "adapter": name, "base_model": "base"}
    UsageEvent.objects.create(
        id=f"event-{mark}", started_at=now, version=version, model=name, engine_id="e",
        journal="j", prompt_price=1, cached_prompt_price=1, output_price=1, finish_reason="stop",
        queue_s=0, load_s=0, total_s=1, **whose, **tokens,
    )  # fmt: skip
    UsageRollup.objects.create(hour=now, model=name, requests=1, **whose, **tokens)
    figures = {
        "at": now, "outcome": "completed", "code": "stop", "limit_kind": "", "limit_scope": "",
        "requests": 1, "prompt_tokens": 3, "cached_tokens": 1, "output_tokens": 2, "cost": 7,
        "decode_tokens": 1, "decode_s": 0.1, "first_tokens": [], "totals": [],
    }  # fmt: skip
    for detail in (RequestMinute, RequestHour):
        detail.objects.create(**whose, version=version, **figures)
    for total in (TotalMinute, TotalHour):
        total.objects.create(tenant=tenant, **figures)
    RefusedRequest.objects.create(
        id=f"refused-{mark}", started_at=now, version=version, model=mark, surface="http",
        outcome="refused", status=400, code="c", message=mark, limit_kind="", limit_scope="",
        total_s=0, **whose,
    )  # fmt: skip


def paths_to_tenant() -> dict[type[models.Model], str]:
    """Each model of which rows belong to a tenant, with the path of fields that leads there."""
    found: dict[type[models.Model], str] = {Tenant: "pk"}
    while more := dict(_next(found)):
        found |= more
    return found


def _next(known: dict[type[models.Model], str]) -> Iterator[tuple[type[models.Model], str]]:
    for model in apps.get_app_config("tenants").get_models():
        # Of several fields the first one counts that every row has.
        fields = reversed(model._meta.concrete_fields)
        for field in sorted(fields, key=lambda field: not field.null):
            target = field.related_model
            if isinstance(target, type) and model not in known and target in known:
                path = known[target]
                yield model, field.name if path == "pk" else f"{field.name}__{path}"
