"""Factories of tenants and of what belongs to them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import connection, transaction
from django.utils import timezone

from inference.link.engine_info import ModelInfo
from tenants.batch_states import Status
from tenants.directory import pools
from tenants.evals.grading import Grade
from tenants.evals.stages import EvalResult
from tenants.models import (
    Adapter,
    AdapterVersion,
    ApiKey,
    BaseModel,
    Batch,
    Eval,
    EvalItem,
    EvalRun,
    FineTuningJob,
    GatewayProcess,
    Membership,
    Purpose,
    Rollout,
    Route,
    State,
    Tenant,
    TuningEvent,
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


SAME = {
    "type": "string_check",
    "name": "same",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.answer }}",
    "operation": "eq",
}
"""A criterion of evals."""


def make_eval(tenant: Tenant, name: str = "Sums", **fields: Any) -> Eval:
    """An eval of one criterion."""
    config = {"item_schema": {"type": "object"}, "include_sample_schema": True}
    return Eval.objects.create(
        tenant=tenant, name=name, **({"config": config, "criteria": [SAME]} | fields)
    )


def make_eval_run(
    eval: Eval, key: ApiKey, passed: Sequence[bool | None] = (), **fields: Any
) -> EvalRun:
    """A completed run whose rows passed, failed, or (None) have no answer."""
    results = [_eval_result(eval, number, one) for number, one in enumerate(passed, 1)]
    counts = {
        status: sum(one.status == status for one in results)
        for status in ("passed", "failed", "errored")
    }
    sums = {"passed": counts["passed"], "failed": counts["failed"]}
    tokens = {"prompt_tokens": 310, "completion_tokens": 48, "total_tokens": 358}
    given: dict[str, Any] = {
        "status": "completed",
        "source": {"type": "completions"},
        "seals": {},
        "model": "base",
        "file": eval.tenant.files.create(purpose=Purpose.EVALS, filename="x", size_bytes=3),
        "total": len(results),
        "by_criterion": [sums for _ in eval.criteria],
        "usage": {"base": {"invocation_count": len(results), "cached_tokens": 0, **tokens}},
        "ended_at": timezone.now(),
    }
    run = EvalRun.objects.create(eval=eval, key=key, **(given | counts | fields))
    EvalItem.objects.bulk_create(
        EvalItem(
            run=run,
            number=one.number,
            status=one.status,
            body=msgspec.json.encode(one).decode(),
            outcomes="".join(grade.outcome[0] for grade in one.grades),
            scores=[grade.score for grade in one.grades],
        )
        for one in results
    )
    return run


def make_scored_run(
    eval: Eval, key: ApiKey, scores: Sequence[float | None], **fields: Any
) -> EvalRun:
    """A completed run of dialogues with these scores by the only criterion; rows passed from 0.5
    on."""
    passed = [None if one is None else one >= 0.5 for one in scores]
    run = make_eval_run(eval, key, passed, **fields)
    for item, score in zip(run.items.all(), scores, strict=True):
        result = msgspec.json.decode(item.body, type=EvalResult)
        asked = {"role": "user", "content": f"What about order {item.number}?"}
        system = {"role": "system", "content": "You answer customers."}
        expected = f"Order {item.number} left today."
        result.item = {"messages": [system, asked], "expected": expected}
        if score is not None:
            result.grades[0].score = score
            result.sample = {"output_text": expected[: round(score * len(expected))] or "Hello!"}
        item.body, item.scores = msgspec.json.encode(result).decode(), [score]
        item.save()
    return run


def _eval_result(eval: Eval, number: int, passed: bool | None) -> EvalResult:
    fault = "" if passed is not None else "There is no `sample.output_text`."
    score = None if passed is None else float(passed)
    grades = [
        Grade(one["name"], one["type"], passed=bool(passed), score=score, error=fault)
        for one in eval.criteria
    ]
    item = {"question": f"What is {number} + 1?", "answer": str(number + 1)}
    error = {"error": {"code": "internal_error", "message": "The engine was lost."}}
    text = str(number + 1) if passed else f"It is {number + 2}, I think."
    sample = error if passed is None else {"output_text": text}
    return EvalResult(number, grades[0].outcome, item, sample, grades)


_DIFFERENCE = {"value": -0.004, "low": -0.021, "high": 0.013}
ROUTE_REPORT: dict[str, Any] = {
    "options": [
        {"model": "small", "quality": 0.61, "cost": 41e6, "share": 0.48},
        {"model": "large", "quality": 0.94, "cost": 410e6, "share": 0.52},
    ],
    "best": 1, "training_rows": 1800, "held_out_rows": 1200, "left_out": 3, "threshold": 0.2,
    "quality": 0.936, "cost": 230e6, "control_quality": 0.79, "control_cost": 233e6,
    "choice_ms": 0.04, "quality_difference": _DIFFERENCE, "cost_difference": _DIFFERENCE,
    "control_difference": {"value": 0.146, "low": 0.12, "high": 0.17},
    "runs": {"small": "evalrun_1", "large": "evalrun_2"},
}  # fmt: skip


def make_route(tenant: Tenant, **fields: Any) -> Route:
    """A route that gains, and is on."""
    given = {"name": "auto", "options": ["small", "large"], "best": 1, "fit": 1, "gains": True,
             "is_on": True, "fitted_at": timezone.now(), "report": ROUTE_REPORT,
             "reason": "It costs 44 % less."}  # fmt: skip
    return Route.objects.create(tenant=tenant, **(given | fields))


def make_tuning_job(
    tenant: Tenant, base: str = "base", reports: int = 0, **fields: Any
) -> FineTuningJob:
    """A job that is trained since some minutes: so many reports were made, every two seconds, and
    one epoch in ten of them."""
    file = tenant.files.create(purpose=Purpose.FINE_TUNE, filename="rows.jsonl", size_bytes=3)
    given: dict[str, Any] = {
        "training_file": file,
        "hyperparameters": {"n_epochs": 24, "batch_size": 4, "learning_rate_multiplier": 1.0},
        "suffix": "support",
        "seed": 7,
        "status": "running",
        "actor": {"kind": "user", "id": 1, "name": "linus", "address": "", "request_id": ""},
    }
    if "key" not in fields:
        given["key"] = make_key(tenant)[0]
    job = FineTuningJob.objects.create(
        tenant=tenant, base_model=make_base(base), **(given | fields)
    )
    began, total = timezone.now() - timedelta(seconds=2 * reports), 2 * reports
    TuningEvent.objects.create(job=job, level="info", message="Training began.", created_at=began)
    for step in range(1, reports + 1):
        metrics = {"train_loss": 0.4 + 3 / (1 + step / 10)}
        if step % 10 == 0:
            metrics["full_valid_loss"] = metrics["train_loss"] + 0.2
            job.checkpoints.create(step=step, metrics=metrics)
        data = {**metrics, "step": step, "total_steps": total, "trained_tokens": 900 * step}
        told = f"Step {step}/{total}: training loss={metrics['train_loss']:.4f}"
        at = began + timedelta(seconds=2 * step)
        TuningEvent.objects.create(job=job, level="info", message=told, data=data, created_at=at)
        job.metrics, job.trained_tokens = metrics, 900 * step
        job.estimated_finish = timezone.now() + timedelta(seconds=2 * (total - step))
    if job.finished_at is not None:
        job.estimated_finish = None
    job.save()
    return job


def make_key(tenant: Tenant, *scopes: str, **fields: Any) -> tuple[ApiKey, str]:
    return ApiKey.objects.issue(tenant, name="a key", scopes=scopes or ["inference"], **fields)


class NoBudgets:
    """A `Spent` for tests without budgets."""

    async def spent(self, scope_id: str, start: datetime, end: datetime) -> tuple[int, int]:
        raise AssertionError("nobody has a budget here")
