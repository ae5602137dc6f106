"""Starting a fine-tuning job, for the API and the console."""

from __future__ import annotations

import re
import secrets

from django.conf import settings
from django.db import transaction

from inference.errors import IdempotencyKeyReused, InsufficientQuota, RateLimitExceeded
from tenants.adapters import quota
from tenants.files import keeping
from tenants.fleet.limit_usage import budgets
from tenants.limits import ceilings
from tenants.limits.kinds import KINDS, TRAINED
from tenants.limits.refusals import money
from tenants.models import ApiKey, FineTuningJob, LimitScope, Purpose
from tenants.models.training_limits import limits_of
from tenants.models.tuning import MAX_SUFFIX
from tenants.tuning import jobs

MAX_SEED = (1 << 31) - 1
SUFFIX = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_SUFFIX - 1}}}")
SUFFIX_RULE = (
    f"must have 1 to {MAX_SUFFIX} letters, digits, dots, underscores and hyphens, with a letter or "
    "digit first."
)


def random_seed() -> int:
    """The seed of a job that asks for none."""
    return secrets.randbelow(MAX_SEED + 1)


def start(
    job: FineTuningJob, training_file: str, validation_file: str | None = None
) -> FineTuningJob:
    """Save a new job and have the files with these ids read; returns it, or the one that was made
    before under the same idempotency key.

    Raises:
        IdempotencyKeyReused: that one was made by a different request.
        InsufficientQuota: a budget of the tenant or the key is exhausted.
        InvalidRequest: the tenant has no such file, or it has another purpose.
        RateLimitExceeded: the tenant has too many unfinished jobs.
    """
    with transaction.atomic():
        tenant = quota.locked(job.tenant_id)  # a concurrent request is to count this job
        if (before := _made_before(job)) is not None:
            return before
        under_way = tenant.tuning_jobs.unfinished().count()
        if under_way >= settings.TENANT_TUNING_JOBS:
            raise RateLimitExceeded(
                f"Tenant `{tenant.slug}` has {under_way} unfinished fine-tuning jobs; at most "
                f"{settings.TENANT_TUNING_JOBS} are allowed.",
                retry_after_s=60,
            )
        _require_budgets(job)
        found = keeping.to_read(tenant, training_file, Purpose.FINE_TUNE, "training_file")
        job.training_file = found
        if validation_file is not None:
            job.validation_file = keeping.to_read(
                tenant, validation_file, Purpose.FINE_TUNE, "validation_file"
            )
        job.save(force_insert=True)
        job.report("The job was created. Its files are checked.")
        jobs.read_later(job)
        return job


def _require_budgets(job: FineTuningJob) -> None:
    """Refuse a job that nothing is left for. What it costs is known once its files are read, so the
    last job of a budget may exceed it. A tenant that may train no token is told so now."""
    if limits_of([job.tenant_id]).get(job.tenant_id) == 0:
        raise InsufficientQuota(
            f"Tenant `{job.tenant.slug}` may not train: its limit `{TRAINED.name}` is 0."
        )
    paying = ApiKey.objects.get(pk=job.key.counted_as)
    for title, scope in (
        (f"tenant `{job.tenant.slug}`", LimitScope(job.tenant)),
        (f"key `{paying.name}`", LimitScope(job.tenant, key=paying)),
    ):
        limits = ceilings.in_force(scope.sets())
        for name, spent in budgets(scope).items():
            limit, kind = limits[name], KINDS[name]
            if limit is not None and spent >= limit:
                shown = money(limit, settings.CURRENCY) if kind.is_money else str(limit)
                raise InsufficientQuota(f"Budget exhausted for {title}: {shown} {kind.wording}.")


def _made_before(job: FineTuningJob) -> FineTuningJob | None:
    if not job.idempotency_key:
        return None
    mine = FineTuningJob.objects.filter(key=job.key, idempotency_key=job.idempotency_key)
    before = mine.select_related("tenant", "base_model").first()
    if before is not None and before.body_sha256 != job.body_sha256:
        raise IdempotencyKeyReused("This Idempotency-Key was already used with a different body.")
    return before
