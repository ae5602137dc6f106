"""The run of the eval that an alias requires, on the candidate of its split: started with the split
unless the candidate has a finished one, and again by whoever asks for it.

In consoles alone, which can seal the batches of a run.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.db import transaction

from inference.errors import InferenceError
from tenants.adapters import quota
from tenants.errors import EvalNotStarted, SplitEnded
from tenants.evals import starting
from tenants.evals.sources import Completions, ResponsesRun, RowsOfFile, RunSource
from tenants.models import (
    AdapterVersion,
    Alias,
    ApiKey,
    AuditEntry,
    Eval,
    EvalRun,
    PromotionGate,
    Split,
)
from tenants.models.audit import Actor
from tenants.models.evals import EvalStatus
from tenants.permissions import Caller, Permission


def start_split(
    alias: Alias, candidate: AdapterVersion, caller: Caller, actor: Actor | None, **fields: Any
) -> Split:
    """Start a split of the alias and, if it lacks one, the run of the eval that the alias requires.
    If that can't be started, the split says why.

    Raises:
        ValidationError, VersionNotReady, SplitRunning: see `SplitQuerySet.start`.
    """
    split = Split.objects.start(alias, candidate, caller.user, **fields)
    gate = _gate(split)
    if gate is not None and gate.last_run(candidate) is None:
        try:
            evaluate(split, caller, actor)
        except EvalNotStarted as refused:
            split.note(refused.message)
    return split


def evaluate(split: Split, caller: Caller, actor: Actor | None) -> None:
    """Start a run of the eval that the split's alias requires, with the caller's key or that of the
    member's playground; nothing is done while one that was started for the split is under way.

    The rows, the prompt and the parameters are those of the eval's last completed run.

    Raises:
        SplitEnded: it has ended.
        EvalNotStarted: the alias requires none, there are no rows, or the caller may not run it.
    """
    gate = _gate(split)
    if gate is None:
        raise EvalNotStarted(f"“{split.alias}” requires no eval.")
    try:
        with transaction.atomic():
            quota.locked(caller.tenant.pk)  # before the split, as nobody else who locks both
            locked = Split.objects.open().select_for_update(of=("self",)).filter(pk=split.pk)
            found = locked.select_related("eval_run").first()
            if found is None:
                raise SplitEnded
            if found.eval_run is not None and found.eval_run.ended_at is None:
                return
            run = _started(gate, found, _payer(caller))
            AuditEntry.objects.note(actor, caller.tenant, "started eval run", run.pk)
    except InferenceError as refused:
        raise EvalNotStarted(f"{gate.requirement}: {refused}") from refused
    split.refresh_from_db(fields=["eval_run"])


def _gate(split: Split) -> PromotionGate | None:
    gates = split.adapter.gates.filter(alias=split.alias)
    return gates.select_related("eval__tenant", "adapter").first()


def _payer(caller: Caller) -> ApiKey:
    """Raises EvalNotStarted."""
    if not caller.may(Permission.USE_FILES):
        raise EvalNotStarted("The eval is not run: your key lacks the scope `inference`.")
    if caller.key is not None:
        return caller.key
    assert caller.user is not None, "a caller is a key or a user"
    return ApiKey.objects.playground_of(caller.user, caller.tenant)


def _started(gate: PromotionGate, split: Split, key: ApiKey) -> EvalRun:
    """Raises EvalNotStarted and InferenceError."""
    model = f"{split.adapter.name}@{split.candidate.number}"
    run = EvalRun(eval=gate.eval, key=key, name=f"split of {split.alias}")
    starting.start(run, _source(gate.eval, model))
    split.eval_run = run
    split.save(update_fields=["eval_run"])
    return run


def _source(eval: Eval, model: str) -> RunSource:
    """What the model is asked: as in the eval's last completed run whose rows are still there.

    Raises:
        EvalNotStarted: there is none.
    """
    asked = eval.runs.exclude(model="").filter(
        status=EvalStatus.COMPLETED, file__in=eval.tenant.files.current()
    )
    last = asked.order_by("-ended_at", "-pk").first()
    if last is None:
        raise EvalNotStarted(
            f"The eval {eval.label} has no completed run whose rows could be asked again: start "
            f"one with the model {model}."
        )
    source = msgspec.convert(last.source, RunSource)
    assert isinstance(source, Completions | ResponsesRun), "the run has a model"
    source.model, source.source = model, RowsOfFile(last.file_id)
    return source
