"""The rows of the scenery, created in a stack's database: `manage.py shell` calls `make`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from random import Random
from typing import Any

import msgspec
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection, transaction
from django.utils import timezone

from demo.crowd import Size, outcomes
from inference.interfaces.directory import MICRO, PICO, TokenPrice
from inference.link.accounts import Account, LedgerEntry, Usage
from tenants.billing.decisions import dismiss
from tenants.models import (
    Adapter,
    ApiKey,
    BaseModel,
    EngineCredential,
    Invitation,
    Lane,
    LimitScope,
    LimitSet,
    Membership,
    QuarantinedEntry,
    Role,
    Rollout,
    Split,
    SplitRequest,
    SplitState,
    Standing,
    SupersededAttempt,
    Tenant,
    UsageEvent,
    UsageRollup,
    UsageSum,
    User,
)
from tenants.models.audit import Actor, acting
from tenants.models.usage.sums import FIGURES
from tenants.splits.jobs import judge
from tenants.tuning.comparison import BASE, BEFORE, CRITERION
from tests.browser.served import MODEL_NAME
from tests.frontend.addresses import Subject
from tests.tenants.making import (
    SAME,
    make_batch,
    make_eval,
    make_eval_run,
    make_route,
    make_scored_run,
    make_tuning_job,
)

COMPANY = "Harbour Outfitters"
LONG_NAME = "The International Society for Perfectly Ordinary Widgets Ltd"
"""60 characters."""
PEOPLE = {"owner": "ada", "admin": "grace", "developer": "linus", "viewer": "margaret"}
DAYS = 35
PRICE = TokenPrice(prompt=1_000_000, cached_prompt=250_000, output=4_000_000)
USED = ("support", "returns-dispatcher", "size-advisor", "")
"""Adapters, each used with a different key; the last is the base model itself."""


def make(slug: str) -> None:
    """Make everything, and print what `tests.browser.scenery.Scenery` needs of it."""
    operator = User.objects.filter(is_staff=True).earliest("id")
    with acting(_actor(operator, "127.0.0.1")):
        tenant, _ = Tenant.objects.get_or_create(slug=slug, defaults={"name": COMPANY})
        people = _people(tenant)
        empty = Tenant.objects.create(slug=f"{slug}-empty", name=LONG_NAME)
        for role, user in people.items():
            Membership.objects.create(user=user, tenant=empty, role=role)
        owner = people["owner"]
        _roll_out()
    with acting(_actor(owner, "198.51.100.7")):
        key, token = _furnish(tenant, people)
    users = people | {"operator": operator}
    sessions = {role: _session(user) for role, user in users.items()}
    made = {"slug": slug, "empty": empty.slug, "key": key, "sessions": sessions}
    print(json.dumps(made | {"invitation": token}))


def subject(slug: str) -> None:
    """Print the objects that the tenant's pages show, such as the newest request, which is changed
    to one that moved between engines."""
    event = Tenant.objects.get(slug=slug).usage.latest("started_at")
    moved = {"attempt": 2, "given_s": 0.9, "inherited_tokens": 4, "trace_id": "4bf92f35" * 4}
    UsageEvent.objects.filter(pk=event.pk).update(**moved, total_s=event.total_s + 0.9)
    SupersededAttempt.objects.create(
        request_id=event.pk, started_at=event.started_at, attempt=1, engine_id="engine-7",
        journal="scenery", prompt_tokens=event.prompt_tokens, cached_tokens=0, completion_tokens=5,
        reasoning_tokens=0, inherited_tokens=0, finish_reason="engine_lost",
        queue_s=0.05, load_s=0.2, ttft_s=0.4, total_s=0.8,
    )  # fmt: skip
    print(json.dumps(asdict(Subject.of(Tenant.objects.get(slug=slug)))))


def quarantine(slug: str) -> None:
    """Create entries that wait for a decision, one that cannot be billed, and a dismissed one."""
    operator = User.objects.filter(is_staff=True).earliest("id")
    key = ApiKey.objects.filter(tenant__slug=slug).earliest("id")
    credential, _ = EngineCredential.objects.issue(name="rack-7", pools=[MODEL_NAME])
    account = Account(key.tenant_id, key.pk, time.time(), MODEL_NAME, price=(1_000, 250, 4_000))
    for number, (reason, detail, output) in enumerate(
        [
            ("not_dispatched", "", 412),
            ("over_bounds", "16 output tokens at most", 1_000_000_000),
            ("malformed", "completion_tokens is -7", -7),
            ("another_engine", "", 64),
        ]
    ):
        said = LedgerEntry(f"{number:032x}", account, "support", Usage(1_280, 256, output), "stop")
        QuarantinedEntry.objects.create(
            credential=credential, engine_id="engine-7", journal="scenery", key=said.id,
            request_id=said.id, attempt=1, reason=reason, detail=detail,
            prompt_tokens=1_280, completion_tokens=output, entry=msgspec.json.encode(said).decode(),
        )  # fmt: skip
    dismiss(QuarantinedEntry.objects.latest("id"), operator)
    print("{}")


def split(slug: str) -> None:
    """Start a split of the adapter `support` that has seen requests, after one that ended."""
    adapter = Adapter.objects.get(tenant__slug=slug, name="support")
    alias, second = adapter.aliases.get(name="live"), adapter.versions.get(number=2)
    guards = [
        {"kind": "errors", "margin": 0.02},
        {"kind": "slow", "margin": 0.05, "seconds": 1.5},
        {"kind": "score", "name": "liked", "margin": 0.05},
    ]
    Split.objects.start(alias, second, None).end(
        SplitState.ROLLED_BACK, "The candidate is worse: errors."
    )
    made = Split.objects.start(alias, second, None, guards=guards, weights=[25, 50])
    SplitRequest.objects.bulk_create(
        SplitRequest(
            split=made, request_id=f"{number:032x}", candidate=number % 4 == 0, weight=25,
            failed=number % 150 == 0, cut=False, ttft_s=0.2 + number % 9 / 5,
            ended_at=made.created_at,
        )
        for number in range(1, 3000)
    )  # fmt: skip
    judge(made.pk)
    print("{}")


def _actor(user: User, address: str) -> Actor:
    return Actor("user", user.pk, user.username, address)


def _roll_out() -> None:
    """Create a rollout that a guard has ended, so that nothing is routed to its revision."""
    base = BaseModel.objects.get(name=MODEL_NAME)
    serving = base.revisions.filter(standing=Standing.SERVING).earliest("id")
    serving.pk, serving.digest, serving.standing = None, "e" * 64, Standing.WAITING
    serving.save()
    rollout = Rollout.objects.start(serving)
    rollout.set_weight(25)
    rollout.roll_back(
        "4.0% of 100 requests failed on the new revision. The limit is 2.0%; on the current "
        "revisions 0.0% failed."
    )


def _people(tenant: Tenant) -> dict[str, User]:
    """A member for each role."""
    made = {}
    for role, name in PEOPLE.items():
        mail = f"{name}@{tenant.slug}.example"
        made[role] = User.objects.create_user(f"{name}.{tenant.slug}", mail)
        Membership.objects.create(user=made[role], tenant=tenant, role=role)
    return made


def _session(user: User) -> str:
    """The cookie of a user who signed in just now. The sign-in counts as recent for another hour,
    however long it takes to create everything."""
    store = SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store["account_authentication_methods_user"] = str(user.pk)
    store["account_authentication_methods"] = [
        {"method": "password", "at": time.time() + 3600, "reauthenticated": True}
    ]
    store.save()
    return str(store.session_key)


def _furnish(tenant: Tenant, people: dict[str, User]) -> tuple[str, str]:
    """Create keys, usage, limits and invitations. Returns the texts of a key and an invitation."""
    keys = _keys(tenant, people)
    scopes = ["inference", "adapters:write"]
    _, key = ApiKey.objects.issue(
        tenant, name="Release pipeline", scopes=scopes, created_by=people["admin"]
    )
    _use(tenant, keys)
    _limit(tenant, keys)
    _batch(keys[-1])
    _evaluate(keys[-1])
    _tune(tenant)
    _compare(keys[-1])
    invite, by = Invitation.objects.invite, people["owner"]
    invite(tenant, role=Role.DEVELOPER, note="Bo from the data team", by=by)
    return key, invite(tenant, role=Role.VIEWER, note="The auditors", by=by)[1]


def _keys(tenant: Tenant, people: dict[str, User]) -> list[ApiKey]:
    """Three keys that are used, of which one expires soon. Two more: one for reading figures, and
    one that has ended."""

    def issue(name: str, by: str, *scopes: str, **fields: Any) -> ApiKey:
        scopes = scopes or ("inference",)
        key, _ = ApiKey.objects.issue(
            tenant, name=name, scopes=scopes, created_by=people[by], **fields
        )
        return key

    issue("Prototype of last spring", "developer").revoke()
    issue("Bookkeeping", "admin", "usage:read")
    soon = timezone.now() + timedelta(days=6)
    return [
        issue("Web shop", "owner"),
        issue("Help dispatcher", "developer", allowed_models=["support", "returns-dispatcher"]),
        issue("Nightly evaluation", "developer", lane=Lane.BATCH, expires_at=soon),
    ]


def _batch(key: ApiKey) -> None:
    """Create a batch with an invalid file, a completed one, and one that a worker seems to run."""
    now = timezone.now()
    wrong = {"code": "duplicate_custom_id", "param": "custom_id", "line": 4711}
    wrong["message"] = "Line 12 has the same `custom_id`."
    common = {
        "completed": 20_412,
        "prompt_tokens": 4_128_300,
        "completion_tokens": 903_120,
        "in_progress_at": now - timedelta(minutes=40),
    }
    for hours, fields in (
        (30, {"status": "failed", "ended_at": now - timedelta(hours=30), "errors": [wrong]}),
        (9, {"status": "completed", "total": 20_430, "failed": 18, **common,
             "finalizing_at": now - timedelta(hours=8), "ended_at": now - timedelta(hours=8)}),
        (1, {"status": "in_progress", "total": 50_000, "failed": 3, **common,
             "leased_until": now + timedelta(days=30)}),
    ):  # fmt: skip
        made = now - timedelta(hours=hours)
        make_batch(key, created_at=made, expires_at=made + timedelta(days=1), **fields)


def _evaluate(key: ApiKey) -> None:
    """An eval with two completed runs and one that failed."""
    judge = {
        "type": "label_model",
        "name": "polite",
        "model": MODEL_NAME,
        "input": [{"role": "user", "content": "Is this polite? {{ sample.output_text }}"}],
        "labels": ["polite", "rude"],
        "passing_labels": ["polite"],
    }
    eval = make_eval(key.tenant, "Returns and refunds", criteria=[SAME, judge])
    now, random = timezone.now(), Random(5)
    for hours, model, share in ((30, MODEL_NAME, 0.6), (3, "support", 0.8)):
        passed = [random.random() < share for _ in range(80)]
        made = now - timedelta(hours=hours)
        make_eval_run(
            eval, key, [None, *passed], name=f"{model}, nightly", model=model,
            created_at=made, ended_at=made + timedelta(minutes=4, seconds=7),
        )  # fmt: skip
    error = {"code": "invalid_rows", "message": "Line 7: `item` does not follow the eval's schema."}
    make_eval_run(eval, key, status="failed", error=error, created_at=now - timedelta(hours=1))


def _tune(tenant: Tenant) -> None:
    """A job that is trained, one that has failed, and one that waits."""
    now = timezone.now()
    error = {"code": "invalid_file", "param": "training_file"}
    error["message"] = "Line 12: `messages` has 0 messages; it must have 1 to 256."
    make_tuning_job(
        tenant, MODEL_NAME, suffix="returns", status="failed", error=error,
        created_at=now - timedelta(days=2), finished_at=now - timedelta(days=2),
    )  # fmt: skip
    make_tuning_job(
        tenant, MODEL_NAME, suffix="sizes", status="paused", created_at=now - timedelta(hours=2)
    )
    created_at = now - timedelta(minutes=9)
    make_tuning_job(tenant, MODEL_NAME, reports=120, claimed_by=1, created_at=created_at)


def _compare(key: ApiKey) -> None:
    """A finished job whose model is compared with two others."""
    now, random = timezone.now(), Random(6)
    job = make_tuning_job(
        key.tenant, MODEL_NAME, suffix="orders", status="succeeded", trained_tokens=41_300,
        created_at=now - timedelta(days=1), finished_at=now - timedelta(hours=20),
    )  # fmt: skip
    eval = make_eval(key.tenant, f"{job.adapter_name} on held-out rows", criteria=[CRITERION])
    for minutes, name, model, mean in (
        (9, BASE, MODEL_NAME, 0.35),
        (8, BEFORE, "orders-1b2c3d4e@1", 0.55),
        (7, job.adapter_name, f"{job.adapter_name}@1", 0.75),
    ):
        scores = [min(1.0, max(0.0, random.gauss(mean, 0.2))) for _ in range(50)]
        made = now - timedelta(minutes=minutes)
        make_scored_run(eval, key, scores, name=name, model=model, created_at=made)
    job.comparison = eval
    job.save()
    make_route(key.tenant, name="auto-support")


def _limit(tenant: Tenant, keys: Sequence[ApiKey]) -> None:
    """Set a ceiling and own limits below it, with most of today's tokens and nearly all of the
    month's budget used.

    Each leaves room for the requests that the scenery makes, even if the day or the month has just
    begun.
    """
    now = timezone.now()
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    used = UsageSum.objects.filter(tenant=tenant)
    today = next(iter(used.sums([], day, now)))
    month = next(iter(used.sums([], day.replace(day=1), now)))
    tokens = int(today["prompt_tokens"] + today["completion_tokens"])
    cost = int(month["cost"]) * MICRO // PICO
    own_cost = (cost * 50 // 48 // MICRO + 1) * MICRO
    ceiling = {"requests_per_minute": 600, "concurrent_streams": 64, "cost_per_month": 2 * own_cost}
    own = {"requests_per_minute": 120, "tokens_per_day": tokens * 9 // 8 + 50_000}
    LimitScope(tenant).store(LimitSet.Author.OPERATOR, ceiling)
    LimitScope(tenant).store(LimitSet.Author.TENANT, own | {"cost_per_month": own_cost})
    LimitScope(tenant, key=keys[-1]).store(LimitSet.Author.TENANT, {"tokens_per_day": 250_000})


def _use(tenant: Tenant, keys: Sequence[ApiKey]) -> None:
    """Create the requests of DAYS days, in the ledger and its sums."""
    now = timezone.now()
    with connection.cursor() as cursor:
        for day in range(DAYS + 1):
            cursor.execute("SELECT tenants_usage_partition(%s)", [now - timedelta(days=day)])
    random = Random(7)
    events = [
        _event(at, keys[place % len(keys)], USED[place], random)
        for place, at in _moments(now, random)
    ]
    UsageEvent.objects.bulk_create(events)
    UsageRollup.objects.bulk_create(_sums(events))
    with transaction.atomic():
        outcomes.make(Size(1, 1, len(events), 0, until=now), [tenant.pk])


def _moments(now: datetime, random: Random) -> Iterator[tuple[int, datetime]]:
    """Indexes into USED with times: more by day than by night, and few on Sundays."""
    begun = now.replace(minute=0, second=0, microsecond=0)
    for hour in range(1, 24 * DAYS):
        at = begun - timedelta(hours=hour)
        busy = 1.1 - math.cos((at.hour - 2) / 12 * math.pi) if at.weekday() < 6 else 0.3
        for place in range(len(USED)):
            for _ in range(round(busy * random.uniform(0.5, 1.5) * 5 / (place + 1))):
                yield place, at + timedelta(seconds=random.uniform(0, 3599))


def _event(at: datetime, key: ApiKey, adapter: str, random: Random) -> UsageEvent:
    prompt, output = random.randint(180, 2400), random.randint(20, 600)
    ttft_s = round(random.lognormvariate(-1.6, 0.5), 3)
    cached = prompt // 32 * 32 if random.random() < 0.4 else 0
    return UsageEvent(
        id=f"{random.getrandbits(128):032x}", started_at=at, tenant=key.tenant, key=key,
        adapter=adapter, model=adapter or MODEL_NAME, base_model=MODEL_NAME,
        engine_id="engine-1", journal="scenery",
        prompt_tokens=prompt, cached_tokens=cached, completion_tokens=output, reasoning_tokens=0,
        prompt_price=PRICE.prompt, cached_prompt_price=PRICE.cached_prompt,
        output_price=PRICE.output, cost=PRICE.cost(Usage(prompt, cached, output)),
        finish_reason="length" if output > 580 else "stop",
        queue_s=0.004, load_s=0.0, ttft_s=ttft_s, total_s=round(ttft_s + output / 90, 3),
    )  # fmt: skip


def _sums(events: Sequence[UsageEvent]) -> list[UsageRollup]:
    """The hourly sums of events, as the ledger keeps them."""
    sums: dict[tuple[Any, ...], UsageRollup] = {}
    for event in events:
        hour = event.started_at.replace(minute=0, second=0, microsecond=0)
        who = {
            name: getattr(event, name)
            for name in ("tenant_id", "key_id", "adapter", "model", "base_model")
        }
        rollup = sums.setdefault(
            (hour, *who.values()), UsageRollup(hour=hour, **who, **dict.fromkeys(FIGURES, 0))
        )
        for name in FIGURES:
            added = 1 if name == "requests" else getattr(event, name)
            setattr(rollup, name, getattr(rollup, name) + added)
    return list(sums.values())
