"""Background jobs: unpacking uploads, validating the versions that they become, and cleaning up.

The state of an upload or version says what is left to do, so a job can be run again at any time:
each step starts from the state and advances it in one statement. Uploads have their own queue,
because clients wait for them and probing can take minutes. The job of a killed worker stays `doing`
while its worker's heartbeat (every 10 s) has stopped; `tend_queue`, run each minute by one of the
workers, retries such jobs. `resume` handles the rest: an upload or version whose job no longer
exists gets a new one.
"""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import msgspec
import procrastinate
import structlog
from django.db import transaction
from django.db.models.signals import post_delete
from django.dispatch import receiver
from django.utils import timezone
from procrastinate.contrib.django import app as django_app
from procrastinate.jobs import Job

from tenants.adapters import parity, probe, short_lived, store, trials
from tenants.adapters.checks.findings import Code, Finding, message_of
from tenants.adapters.uploads import objects, parts
from tenants.adapters.uploads.keeping import Destination, keep
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.adapters.uploads.unpacking import unpacked
from tenants.errors import IllegalTransition
from tenants.models import (
    AdapterVersion,
    FineTuningJob,
    GatewayProcess,
    State,
    UploadChunk,
    UploadSession,
)
from tenants.models.audit import Actor, acting
from tenants.queueing import has_job
from tenants.storage import ABANDONED_AFTER, remove_scratch, remove_strays

log = structlog.get_logger(__name__)
app: procrastinate.App = django_app

UPLOADS = "uploads"
"""The queue of jobs that clients wait for."""
LONGEST_WAIT_S = 60
LOAD_ATTEMPTS = 5
"""Failed loads before a version is rejected: a single one may be the engine's fault (memory, a
restart)."""
KEEP_JOBS_HOURS = 24 * 7
HELD = list[probe.ProbedPrompt]
TRAINING = "training"
"""The part of a version's report that says how it was trained, if that was here
(`tenants.tuning`)."""


class Backoff(procrastinate.BaseRetryStrategy):
    """Retry without end: after 2, 4, 8, ... seconds, at most LONGEST_WAIT_S.

    Jobs fail only through faults on our side; a faulty adapter ends as `rejected`.
    """

    def get_retry_decision(
        self, *, exception: BaseException, job: Job
    ) -> procrastinate.RetryDecision:
        seconds = min(2 ** min(job.attempts + 1, 10), LONGEST_WAIT_S)
        return procrastinate.RetryDecision(retry_in={"seconds": seconds})


# --- Uploads -------------------------------------------------------------------------------------


def unpack_later(session: UploadSession) -> None:
    """Queue the job that turns the upload into a version, once the current transaction commits."""
    unpack_upload.configure(lock=_upload_lock(session.pk)).defer(upload_id=str(session.pk))


def _upload_lock(upload_id: UUID) -> str:
    return f"upload-{upload_id}"


@app.task(name="unpack_upload", queue=UPLOADS, retry=Backoff())
def unpack_upload(upload_id: str) -> None:
    """Turn an upload into a version, or refuse it with a reason.

    Raises:
        OSError: its files are missing, or the disk is full; the upload stays as it is.
    """
    uploads = UploadSession.objects.unfinished().select_related("tenant", "created_by")
    session = uploads.filter(pk=upload_id).exclude(received_at=None).first()
    if session is None:  # it has ended or was discarded
        return
    assert session.actor is not None, "the database's constraint: it was received for somebody"
    with acting(Actor(**session.actor)):
        ended = _outcome(session)
    uploads.filter(pk=session.pk).update(**ended)
    if "oid" not in ended:
        parts.remove(session.pk)
    if "refusal" not in ended:
        objects.forget_commits(session)
    log.info("upload_unpacked", upload=upload_id, adapter=session.adapter_name, **_logged(ended))


def _outcome(session: UploadSession) -> dict[str, Any]:
    """The fields of the upload's row that say how it ended, or that it waits for another."""
    try:
        with unpacked(session) as upload:
            judge = _wait_for_caller if session.short_lived else judge_later
            version, kept = keep(Destination.of(session), upload, judge)
        if session.short_lived:
            _serve_now(version)
    except UploadRefused as refusal:
        details = {"status": refusal.status_code, "code": refusal.code, "detail": refusal.message}
        return {"refusal": details}
    except objects.OtherFileNeeded:
        waits = {"oid": objects.WAITING_COMMIT, "received_at": None, "actor": None}
        return waits | {"length_bytes": parts.size(session.pk)}
    return {"version": version, "known": not kept}


def _wait_for_caller(version: AdapterVersion) -> None:
    """Queue no job: a short-lived version is checked by the job that unpacks it. If that is killed,
    `resume` queues one."""


def _serve_now(version: AdapterVersion) -> None:
    """Check a short-lived version and serve it.

    Raises:
        UploadRefused: it was rejected, and is gone, or was unloaded meanwhile.
    """
    if version.state == State.READY:  # it was loaded before
        return short_lived.serve(version)
    judge_version(version_id=version.pk)
    found = AdapterVersion.objects.filter(pk=version.pk).first()
    if found is None:
        message = "The adapter was unloaded before it was checked."
        raise UploadRefused(UploadRefusal.ADAPTER_DELETED, message)
    if found.state == State.REJECTED:
        short_lived.discard(found)
        finding = found.report["findings"][0]
        raise UploadRefused(UploadRefusal.CHECKS_FAILED, finding["message"])


def _logged(ended: dict[str, Any]) -> dict[str, str]:
    refusal = ended.get("refusal")
    if "oid" in ended:
        return {"waits": "for the other file"}
    return {"refused": refusal["code"]} if refusal else {"version": str(ended["version"])}


# --- Versions ------------------------------------------------------------------------------------


def judge_later(version: AdapterVersion) -> None:
    """Queue the job that judges the version, once the current transaction commits.

    The lock lets only one job of a version run at a time.
    """
    judge_version.configure(lock=lock_of(version.pk)).defer(version_id=version.pk)


def lock_of(version_id: int) -> str:
    """The lock of the jobs of a version. They run in the order in which they were queued."""
    return f"adapter-version-{version_id}"


@app.task(name="judge_version", retry=Backoff())
def judge_version(version_id: int) -> None:
    """Take a version through the static checks and the probe, until it is ready or rejected.

    Raises:
        ProbeUnavailable, StoredFileDamaged, OSError: it cannot be judged now; the state stays, and
            the report says what it waits for.
    """
    versions = AdapterVersion.objects.select_related("adapter__tenant", "adapter__base_model")
    version = versions.filter(pk=version_id).first()
    if version is None:  # deleted with its adapter meanwhile
        return
    try:
        if version.state == State.VALIDATING:
            _check(version)
        if version.state == State.PROBING and version.expires_at is not None:
            short_lived.serve(version)
        elif version.state == State.PROBING:
            _probe(version)
    except IllegalTransition:  # another run of the job, or a user, changed the state first
        log.info("adapter_judged_elsewhere", version=str(version), state=version.state)
    except Exception as error:
        _note(version, waiting_for=message_of(error))
        raise


def _check(version: AdapterVersion) -> None:
    verdict = store.check(version)
    report = {name: version.report[name] for name in (TRAINING,) if name in version.report}
    report |= verdict.report
    if verdict.accepted:
        version.advance(State.PROBING, report=report, config=verdict.config)
    else:
        _reject(version, report)
    log.info("adapter_checked", version=str(version), state=version.state)


def _probe(version: AdapterVersion) -> None:
    """Try the version on each revision it is to run on. The first revision, preferably one that can
    take it and has an engine, decides whether it becomes ready; the results on the others matter
    only for those revisions (`tenants.rollouts`)."""
    base_model = version.adapter.base_model
    revisions = trials.wanted(base_model, GatewayProcess.objects.engines_of())
    revisions = [one for one in revisions if not one.cannot_take(version)] or revisions
    decisive = revisions[0] if revisions else None
    parity.prepare(version)
    held = _held(version)
    try:
        found = trials.attempt(version, decisive, [row.ids for row in held])
    except probe.LoadFailed as error:
        _note_failed_load(version, error)
        return
    report = {**_settled(version.report), "probe": found.as_json()}
    finding = found.verdict()
    if finding is None:
        report["parity"], finding = _compared(version, found)
    if finding is None and held:
        report["trainer"], finding = _compared_with_trainer(held, found)
    if finding is not None:
        _reject(version, _with(report, finding))
    else:
        for other in revisions[1:]:  # before it can be called, so that its tenant need not move
            with contextlib.suppress(probe.LoadFailed):
                trials.try_on(version, other, last=False)
        with transaction.atomic():
            if decisive is not None:
                trials.note(version, decisive, found)
            version.become_ready(report=report)
    log.info("adapter_probed", version=str(version), state=version.state)


def _compared(
    version: AdapterVersion, found: probe.ProbeReport
) -> tuple[dict[str, Any], Finding | None]:
    """How the engine's answers compare with PEFT's, for the report, and why that rejects it."""
    try:
        compared = parity.compare(version, found)
    except parity.NotCompared as error:
        return {"not_compared": message_of(error)}, None
    return compared.as_json(), compared.differs(Code.DIFFERS_FROM_PEFT, "PEFT's")


def _held(version: AdapterVersion) -> list[probe.ProbedPrompt]:
    """Rows with the log-probabilities that the version's trainer computed; none if it was not
    trained here."""
    job = version.report.get(TRAINING, {}).get("job")
    rows = FineTuningJob.objects.filter(tenant=version.adapter.tenant, pk=job)
    return msgspec.convert(rows.values_list("held", flat=True).first() or [], HELD)


def _compared_with_trainer(
    held: list[probe.ProbedPrompt], found: probe.ProbeReport
) -> tuple[dict[str, Any], Finding | None]:
    try:
        compared = parity.compare_with_trainer(held, found)
    except parity.NotCompared as error:
        return {"not_compared": message_of(error)}, None
    return compared.as_json(), compared.differs(
        Code.DIFFERS_FROM_TRAINER, "those that its trainer computed"
    )


def _note_failed_load(version: AdapterVersion, error: probe.LoadFailed) -> None:
    failed = version.report.get("failed_loads", 0) + 1
    if failed < LOAD_ATTEMPTS:
        _note(version, failed_loads=failed)
        raise error
    message = f"The engine could not load the adapter ({failed} attempts): {message_of(error)}"
    _reject(version, _with(_settled(version.report), Finding(Code.LOAD_FAILED, message)))


def _with(report: dict[str, Any], finding: Finding) -> dict[str, Any]:
    return {**report, "findings": [finding.as_json()]}


def _reject(version: AdapterVersion, report: dict[str, Any]) -> None:
    """Keep only the report; the files are deleted at once."""
    folder = version.folder
    with transaction.atomic():
        version.advance(State.REJECTED, report=report, folder="")
        remove_files.defer(folder=folder)


def _settled(report: dict[str, Any]) -> dict[str, Any]:
    """The report without what applied only while the version waited."""
    return {name: value for name, value in report.items() if name != "waiting_for"}


def _note(version: AdapterVersion, **facts: Any) -> None:
    """Add to the report of a version that stays as it is; no error if it moved on."""
    version.report = {**version.report, **facts}
    here = AdapterVersion.objects.filter(pk=version.pk, state=version.state)
    here.update(report=version.report)


# --- Tidying up ----------------------------------------------------------------------------------


@app.periodic(cron="* * * * *")
@app.task(name="tend_queue", queueing_lock="tend_queue", pass_context=True)
async def tend_queue(context: procrastinate.JobContext, timestamp: int) -> None:
    """Retry the jobs of killed workers, and delete jobs that ended long ago."""
    jobs = context.app.job_manager
    for job in await jobs.get_stalled_jobs():
        await jobs.retry_job(job)
    await jobs.delete_old_jobs(nb_hours=KEEP_JOBS_HOURS, include_failed=True)


@app.periodic(cron="*/10 * * * *")
@app.task(name="clean_up", queueing_lock="clean_up")
def clean_up(timestamp: int) -> None:
    """Remove abandoned and unused files, and resume what waits without a job."""
    remove_abandoned()
    remove_expired()
    remove_unused()
    resume()


@app.periodic(cron="* * * * *")
@app.task(name="remove_short_lived", queueing_lock="remove_short_lived")
def remove_short_lived(timestamp: int) -> None:
    """Delete short-lived versions that have expired."""
    short_lived.remove_expired()


def remove_abandoned() -> None:
    """Delete the leftovers of uploads that were interrupted more than ABANDONED_AFTER ago."""
    before = timezone.now() - ABANDONED_AFTER
    for version in AdapterVersion.objects.filter(state=State.UPLOADING, created_at__lt=before):
        version.delete()
    remove_strays(parts.PLACE, UploadChunk)
    remove_scratch()


def remove_expired() -> None:
    """Delete expired uploads in parts, and the outcomes of ended uploads once they expire."""
    for session in UploadSession.objects.expired():
        parts.discard(session)


def remove_unused() -> None:
    """Delete the files of archived versions, and of versions that an earlier release rejected. An
    upload of the same content restores an archived version."""
    unused = AdapterVersion.objects.filter(state__in=(State.ARCHIVED, State.REJECTED))
    for version in unused.exclude(folder=""):
        folder = version.folder
        with transaction.atomic():
            if unused.filter(pk=version.pk, folder=folder).update(folder=""):
                remove_files.defer(folder=folder)


def resume() -> None:
    """Queue a new job for each upload and version that is waiting for one that no longer exists."""
    for session in UploadSession.objects.unfinished().exclude(received_at=None):
        if not has_job(_upload_lock(session.pk)):
            unpack_later(session)
    for version in AdapterVersion.objects.filter(state__in=[State.VALIDATING, State.PROBING]):
        if not has_job(lock_of(version.pk)):
            judge_later(version)


@receiver(post_delete, sender=AdapterVersion)
def _remove_files_later(instance: AdapterVersion, **kwargs: Any) -> None:
    # After the commit, by a worker: files cannot be rolled back.
    if instance.folder:
        remove_files.defer(folder=instance.folder)


@app.task(name="remove_files", retry=Backoff())
def remove_files(folder: str) -> None:
    """Delete the files of a version whose row is gone."""
    store.remove(folder)
