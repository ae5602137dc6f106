"""Tries adapter versions on revisions, and stores one outcome for each pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import procrastinate
import structlog
from django.conf import settings
from django.db.models import Exists, OuterRef
from procrastinate.contrib.django import app as django_app
from procrastinate.contrib.django.models import ProcrastinateJob

from tenants.adapters import probe
from tenants.adapters.checks.findings import message_of
from tenants.models import (
    LIVE,
    AdapterVersion,
    Alias,
    BaseModel,
    GatewayProcess,
    PoolRevision,
    Standing,
    State,
    Trial,
)
from tenants.queueing import UNFINISHED, defer_once

log = structlog.get_logger(__name__)
app: procrastinate.App = django_app

QUEUE = "pools"
"""The queue of jobs for revisions, apart from others so that hundreds of trials delay no upload."""
LOAD_ATTEMPTS = 5
"""Failed loads before an adapter counts as failed: a single one may be the engine's fault."""
AT_A_TIME = 16
"""Trials queued at the same time, over all pools; as these end, more are queued."""


def wanted(base_model: BaseModel, engines: Mapping[str, int]) -> list[PoolRevision]:
    """The revisions on which adapters should run: those that serve, and that of an open rollout; if
    no serving revision has engines, also waiting ones that have. Revisions with engines come first;
    `engines` is the number of engines by revision digest."""
    revisions = base_model.revisions.exclude(standing=Standing.WITHDRAWN).order_by("-seen_at", "id")
    serving = [one for one in revisions if one.standing == Standing.SERVING]
    waiting = [one for one in revisions if one.standing == Standing.WAITING]
    new = set(base_model.rollouts.open().values_list("revision_id", flat=True))
    found = serving + [one for one in waiting if one.pk in new]
    if not any(engines.get(one.digest) for one in serving):
        found += [one for one in waiting if engines.get(one.digest) and one.pk not in new]
    return sorted(found, key=lambda one: not engines.get(one.digest))


def attempt(
    version: AdapterVersion, revision: PoolRevision | None, rows: Sequence[list[int]] = ()
) -> probe.ProbeReport:
    """Have an engine of the revision try the version, also on these rows of tokens; any engine of
    its base model if None.

    Raises:
        ProbeUnavailable, LoadFailed: as `probe.ask`.
    """
    return probe.ask(
        list(GatewayProcess.objects.alive().values_list("url", flat=True)),
        settings.WORKER_TOKEN,
        base_model=version.adapter.base_model.name,
        adapter=version.ref,
        revision=revision.digest if revision else "",
        rows=rows,
    )


def note(version: AdapterVersion, revision: PoolRevision, found: probe.ProbeReport) -> Trial:
    """Store what an engine of the revision found."""
    finding = found.verdict()
    reason = {"reason": finding.message} if finding else {}
    return keep(version, revision, passed=finding is None, report={**found.as_json(), **reason})


def keep(
    version: AdapterVersion, revision: PoolRevision, *, passed: bool, report: dict[str, Any]
) -> Trial:
    """Store an outcome, replacing an earlier one."""
    trial, _ = Trial.objects.update_or_create(
        version=version, revision=revision, defaults={"passed": passed, "report": report}
    )
    log.info("adapter_tried", version=str(version), revision=revision.short, passed=passed)
    return trial


@app.task(
    name="try_version",
    queue=QUEUE,
    pass_context=True,
    retry=procrastinate.RetryStrategy(
        max_attempts=LOAD_ATTEMPTS,
        exponential_wait=2,
        retry_exceptions={probe.LoadFailed},
    ),
)
def try_version(context: procrastinate.JobContext, version_id: int, revision_id: int) -> None:
    """Try one version on one revision. If no engine is available, nothing is stored, and the trial
    is queued again as long as it is needed.

    Raises:
        LoadFailed: an engine could not load it, and the job is to be retried.
    """
    assert context.job is not None
    last = context.job.attempts + 1 >= LOAD_ATTEMPTS
    versions = AdapterVersion.objects.filter(pk=version_id, state=State.READY)
    version = versions.select_related("adapter__tenant", "adapter__base_model").first()
    revision = PoolRevision.objects.filter(pk=revision_id).first()
    if version is not None and revision is not None:  # else deleted or archived meanwhile
        try_on(version, revision, last=last)


def try_on(version: AdapterVersion, revision: PoolRevision, *, last: bool = True) -> None:
    """Try the version on an engine of the revision, and store the outcome. A failed load is stored
    if this is the `last` attempt.

    Raises:
        LoadFailed: the load failed, and this is not the last attempt.
    """
    if reason := revision.cannot_take(version):
        keep(version, revision, passed=False, report={"reason": reason})
        return
    try:
        note(version, revision, attempt(version, revision))
    except probe.ProbeUnavailable as error:
        log.info("adapter_not_tried", version=str(version), revision=revision.short, why=str(error))
    except probe.LoadFailed as error:
        if not last:
            raise
        reason = f"An engine could not load it ({LOAD_ATTEMPTS} attempts): {message_of(error)}"
        keep(version, revision, passed=False, report={"reason": reason})


def untried(revision: PoolRevision, tenants: Iterable[int] | None = None) -> list[AdapterVersion]:
    """At most AT_A_TIME versions that were not tried on the revision: live versions of these
    tenants, or, if None, all ready versions of all tenants, live ones first."""
    known = Trial.objects.filter(revision=revision, version=OuterRef("pk"))
    live = Alias.objects.filter(name=LIVE, version=OuterRef("pk"))
    versions = AdapterVersion.objects.filter(
        ~Exists(known),
        state=State.READY,
        expires_at=None,
        adapter__base_model=revision.base_model_id,
    ).annotate(is_live=Exists(live))
    if tenants is not None:
        versions = versions.filter(is_live=True, adapter__tenant__in=tenants)
    return list(versions.order_by("-is_live", "pk")[:AT_A_TIME])


def queued() -> int:
    """The number of trials that are queued or running."""
    jobs = ProcrastinateJob.objects.filter(task_name=try_version.name, status__in=UNFINISHED)
    return int(jobs.count())


def try_missing(revision: PoolRevision, versions: Iterable[AdapterVersion]) -> int:
    """Queue trials of these versions on the revision, unless queued already. Returns how many were
    queued."""
    return sum(
        defer_once(
            try_version,
            f"trial-{version.pk}-{revision.pk}",
            version_id=version.pk,
            revision_id=revision.pk,
        )
        for version in versions
    )
