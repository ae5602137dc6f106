"""`/v1/fine_tuning/jobs` as in OpenAI's API, for keys: adapters that are trained here.

Jobs are created and shown here; workers read their files and trainers train them
(`tenants.tuning`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from django.db import transaction
from django.http import HttpRequest

from inference.errors import InvalidRequest, NotFound
from tenants.api.endpoints.openai.batches import check_metadata, idempotency_key
from tenants.api.openai import listing
from tenants.api.openai.views import Query, body_of, keyed_by_method
from tenants.directory.catalogue import unknown
from tenants.models import (
    ApiKey,
    AuditEntry,
    BaseModel,
    FineTuningJob,
    TuningCheckpoint,
    TuningEvent,
)
from tenants.models.audit import actor_of
from tenants.models.tuning import AUDITED
from tenants.naming import adapter_of
from tenants.permissions import TABLE, Permission
from tenants.tuning import jobs, starting
from tenants.tuning.hyperparameters import AUTO, BOUNDS, Auto
from tenants.tuning.starting import MAX_SEED, SUFFIX, SUFFIX_RULE
from tenants.tuning_states import SUPERVISED, Method, TuningStatus

USERS = TABLE[Permission.EDIT_ADAPTERS][1]
"""A job makes an adapter."""
MAX_PAGE = 100


class _Hyperparameters(msgspec.Struct, forbid_unknown_fields=True):
    n_epochs: Auto | int | None = None
    batch_size: Auto | int | None = None
    learning_rate_multiplier: Auto | int | float | None = None
    beta: Auto | int | float | None = None


class _Settings(msgspec.Struct, forbid_unknown_fields=True):
    hyperparameters: _Hyperparameters | None = None


class _Method(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    supervised: _Settings | None = None
    dpo: _Settings | None = None
    reinforcement: Any = None


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    training_file: str
    validation_file: str | None = None
    method: _Method | None = None
    hyperparameters: _Hyperparameters | None = None
    suffix: str | None = None
    seed: int | None = None
    metadata: dict[str, str] | None = None
    integrations: Any = None


def shown(job: FineTuningJob) -> dict[str, Any]:
    """The job as clients see it."""
    done = job.status == TuningStatus.SUCCEEDED
    return {
        "id": job.pk,
        "object": "fine_tuning.job",
        "created_at": int(job.created_at.timestamp()),
        "error": job.error,
        "fine_tuned_model": job.fine_tuned_model if done else None,
        "finished_at": _seconds(job.finished_at),
        "hyperparameters": job.hyperparameters,
        "model": job.base_model.name,
        "organization_id": job.tenant.slug,
        "result_files": [],
        "seed": job.seed,
        "status": job.status,
        "trained_tokens": job.trained_tokens if job.finished_at else None,
        "training_file": job.training_file_id,
        "validation_file": job.validation_file_id,
        "estimated_finish": _seconds(job.estimated_finish),
        "integrations": [],
        "metadata": job.metadata,
        "method": {"type": job.method, job.method: {"hyperparameters": job.hyperparameters}},
    }


def _seconds(at: Any) -> int | None:
    return None if at is None else int(at.timestamp())


def shown_event(event: TuningEvent) -> dict[str, Any]:
    """The event as clients see it."""
    return {
        "id": event.pk,
        "object": "fine_tuning.job.event",
        "created_at": int(event.created_at.timestamp()),
        "level": event.level,
        "message": event.message,
        "type": "message" if event.data is None else "metrics",
        "data": event.data,
    }


def shown_checkpoint(checkpoint: TuningCheckpoint) -> dict[str, Any]:
    """The checkpoint as clients see it."""
    job = checkpoint.job
    return {
        "id": checkpoint.pk,
        "object": "fine_tuning.job.checkpoint",
        "created_at": int(checkpoint.created_at.timestamp()),
        "fine_tuned_model_checkpoint": f"{job.fine_tuned_model}:ckpt-step-{checkpoint.step}",
        "fine_tuning_job_id": job.pk,
        "metrics": {"step": checkpoint.step, **checkpoint.metrics},
        "step_number": checkpoint.step,
    }


def found(key: ApiKey, id: str) -> FineTuningJob:
    """The job of the key's tenant with this id.

    Raises:
        NotFound: there is none.
    """
    mine = key.tenant.tuning_jobs.select_related("tenant", "base_model")
    job = None if "\0" in id else mine.filter(pk=id).first()
    if job is None:
        raise NotFound(f"No fine-tuning job found with id '{id[:64]}'.")
    return job


# --- Creating ------------------------------------------------------------------------------------


def _create(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    wanted = body_of(request, _Wanted)
    check_metadata(wanted.metadata or {})
    method, hyperparameters = _method(wanted)
    job = FineTuningJob(
        tenant=key.tenant,
        key=key,
        base_model=_base_model(key, wanted.model),
        method=method,
        hyperparameters=hyperparameters,
        suffix=_suffix(wanted.suffix),
        seed=_seed(wanted.seed),
        metadata=wanted.metadata,
        actor=msgspec.to_builtins(actor_of(request, key)),
        idempotency_key=idempotency_key(request),
        body_sha256=hashlib.sha256(request.body).hexdigest(),
    )
    with transaction.atomic():
        made = starting.start(job, wanted.training_file, wanted.validation_file)
        if made is job:
            _audit(request, key, job, "created")
    return shown(made)


def _base_model(key: ApiKey, name: str) -> BaseModel:
    base = None
    if "\0" not in name and key.may_use(name):
        base = BaseModel.objects.that_chat().filter(name=name).first()
    if base is not None:
        return base
    adapter = adapter_of(name).partition("@")[0].replace("\0", "")
    own = (("an adapter", key.tenant.adapters), ("a route", key.tenant.routes))
    for kind, names in own:
        if names.filter(name=adapter).exists():
            raise InvalidRequest(
                f"`model` is {name[:64]!r}, {kind}: training begins from a base model.",
                param="model",
            )
    raise unknown(name)


def _method(wanted: _Wanted) -> tuple[Method, dict[str, Any]]:
    """The method, and its hyperparameters as asked for, there or in the older way.

    Raises:
        InvalidRequest: it is out of bounds, asked for twice, or for what there is not.
    """
    if wanted.integrations:
        raise InvalidRequest("`integrations` are not supported.", param="integrations")
    asked = wanted.method or _Method(SUPERVISED)
    method = _known(asked)
    given: _Settings | None = getattr(asked, method)
    nested = given.hyperparameters if given else None
    if nested is not None and wanted.hyperparameters is not None:
        raise InvalidRequest("Send hyperparameters in `method` alone.", param="hyperparameters")
    where = "hyperparameters" if nested is None else f"method.{method}.hyperparameters"
    numbers = msgspec.structs.asdict(nested or wanted.hyperparameters or _Hyperparameters())
    found = {name: AUTO if numbers[name] is None else numbers[name] for name in BOUNDS[method]}
    for name in numbers.keys() - found.keys():
        if numbers[name] is not None:
            param = f"{where}.{name}"
            raise InvalidRequest(f"`{param}` is not of the method `{method}`.", param=param)
    _check_bounds(method, found, where)
    return method, found


def _known(asked: _Method) -> Method:
    """The method's type.

    Raises:
        InvalidRequest: it is not offered, or another one has settings.
    """
    if asked.type not in BOUNDS:
        raise InvalidRequest(
            f"`method.type` is {asked.type[:64]!r}: it must be `supervised` or `dpo`.",
            param="method.type",
        )
    method: Method = msgspec.convert(asked.type, Method)
    for name in {*asked.__struct_fields__} - {"type", method}:
        if getattr(asked, name) is not None:
            raise InvalidRequest(
                f"`method.{name}` is not of the method `{method}`.", param=f"method.{name}"
            )
    return method


def _check_bounds(method: Method, asked: Mapping[str, Any], where: str) -> None:
    for name, value in asked.items():
        least, most = BOUNDS[method][name]
        if value != AUTO and not least <= value <= most:
            param = f"{where}.{name}"
            raise InvalidRequest(
                f"`{param}` is {value:.17g}: it must be `auto`, or from {least:g} to {most:g}.",
                param=param,
            )


def _suffix(asked: str | None) -> str:
    if asked is None:
        return ""
    if not SUFFIX.fullmatch(asked):
        raise InvalidRequest(f"`suffix` is {asked[:64]!r}: it {SUFFIX_RULE}", param="suffix")
    return asked.lower()


def _seed(asked: int | None) -> int:
    if asked is None:
        return starting.random_seed()
    if not 0 <= asked <= MAX_SEED:
        raise InvalidRequest(f"`seed` must be from 0 to {MAX_SEED}.", param="seed")
    return asked


# --- The rest ------------------------------------------------------------------------------------


def _audit(request: HttpRequest, key: ApiKey, job: FineTuningJob, action: str) -> None:
    AuditEntry.objects.note(actor_of(request, key), key.tenant, action, job.pk, AUDITED)


def _list(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    query = Query(request.GET, listing.PARAMETERS)
    mine = key.tenant.tuning_jobs.select_related("tenant", "base_model")
    return listing.page(mine, query, shown, most=MAX_PAGE)


def _retrieve(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    return shown(found(key, id))


def _events(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    query = Query(request.GET, listing.PARAMETERS)
    return listing.page(found(key, id).events.all(), query, shown_event, most=MAX_PAGE)


def _checkpoints(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    query = Query(request.GET, listing.PARAMETERS)
    of_job = found(key, id).checkpoints.select_related("job__tenant", "job__base_model")
    return listing.page(of_job, query, shown_checkpoint, most=MAX_PAGE)


def _cancel(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    job = found(key, id)
    jobs.cancel(job)
    return _changed(request, key, job)


def _pause(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    job = found(key, id)
    jobs.pause(job)
    return _changed(request, key, job)


def _resume(request: HttpRequest, key: ApiKey, id: str) -> dict[str, Any]:
    job = found(key, id)
    jobs.resume(job)
    return _changed(request, key, job)


def _changed(request: HttpRequest, key: ApiKey, job: FineTuningJob) -> dict[str, Any]:
    _audit(request, key, job, "changed")
    return shown(job)


all_jobs = keyed_by_method(USERS, GET=_list, POST=_create)
one_job = keyed_by_method(USERS, GET=_retrieve)
events = keyed_by_method(USERS, GET=_events)
checkpoints = keyed_by_method(USERS, GET=_checkpoints)
cancel = keyed_by_method(USERS, POST=_cancel)
pause = keyed_by_method(USERS, POST=_pause)
resume = keyed_by_method(USERS, POST=_resume)
