"""Creating evals and runs, for the API, the console and splits: in consoles alone, which can seal
the batches of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from django.conf import settings
from django.db import transaction

from inference.errors import RateLimitExceeded
from tenants.adapters import quota
from tenants.evals import runs, sources
from tenants.evals.sources import RowsInside, RowsOfFile, RunSource
from tenants.files import blobs, keeping
from tenants.models import Eval, EvalRun, Purpose, StoredFile, Tenant
from tenants.models.files import new_file_id

MAX_EVALS = 1000
"""Of one tenant."""

_json = msgspec.json.Encoder().encode


def create(eval: Eval) -> None:
    """Save a new eval.

    Raises:
        RateLimitExceeded: its tenant has too many.
    """
    with transaction.atomic():
        tenant = quota.locked(eval.tenant_id)  # so that a concurrent request counts this one
        if (count := tenant.evals.count()) >= MAX_EVALS:
            raise RateLimitExceeded(
                f"Tenant `{tenant.slug}` has {count} evals; at most {MAX_EVALS} are allowed. "
                "Delete some first."
            )
        eval.save(force_insert=True)


def start(run: EvalRun, source: RunSource) -> None:
    """Save a new run of this source, whose rows may be in it, and have a worker go on with it.

    Raises:
        InvalidRequest: there are no such rows.
        RateLimitExceeded: the tenant has too many unfinished runs.
        StorageFull: it has no room for the rows.
    """
    sources.check_source(source)
    with _rows_of(source, run.eval.tenant) as file, transaction.atomic():
        tenant = quota.locked(run.eval.tenant_id)
        require_room(tenant)
        save(run, source, _kept(tenant, file))
        runs.go_on_later(run)


def require_room(tenant: Tenant, more: int = 1) -> None:
    """Raises RateLimitExceeded if the tenant can't have so many more unfinished runs."""
    under_way = EvalRun.objects.unfinished().filter(eval__tenant=tenant).count()
    if under_way + more > settings.TENANT_BATCHES:
        raise RateLimitExceeded(
            f"Tenant `{tenant.slug}` has {under_way} unfinished runs; at most "
            f"{settings.TENANT_BATCHES} are allowed.",
            retry_after_s=60,
        )


def save(run: EvalRun, source: RunSource, file: StoredFile) -> None:
    """Save a new run of this source, with the rows of this file."""
    source.source = RowsOfFile(file.pk)
    run.file, run.model = file, getattr(source, "model", "")
    run.source = msgspec.to_builtins(source)
    runs.sealed(run).save(force_insert=True)


@contextmanager
def _rows_of(source: RunSource, tenant: Tenant) -> Iterator[StoredFile | str]:
    """The id of the file with the rows; or a new file with those in the request, whose bytes are
    stored, and are removed if the block fails."""
    if not isinstance(source.source, RowsInside):
        assert isinstance(source.source, RowsOfFile)
        yield source.source.id
        return
    id = new_file_id()
    with blobs.made(id) as kept:
        for row in source.source.content:
            kept.write(_json(row) + b"\n")
        size = kept.tell()
    try:
        yield StoredFile(
            id=id, tenant=tenant, purpose=Purpose.EVALS, filename="rows.jsonl", size_bytes=size
        )
    except BaseException:
        blobs.remove(id)
        raise


def _kept(tenant: Tenant, file: StoredFile | str) -> StoredFile:
    """The file of the run, saved; locked, so that it is not deleted meanwhile."""
    if isinstance(file, StoredFile):
        keeping.require_room(tenant, file.size_bytes)
        file.save(force_insert=True)
        return file
    return keeping.to_read(tenant, file, Purpose.EVALS, "data_source.source.id")
