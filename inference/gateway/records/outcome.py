"""What a tenant sees of its requests: the group that each is counted in, and each refused one."""

from __future__ import annotations

from collections.abc import Mapping

from inference.errors import AdapterLoadFailed, EngineFailed, InferenceError, InvalidApiKey
from inference.gateway.measuring.measures import COMPLETED, FAILED, code_of
from inference.gateway.measuring.outcomes import (
    MINUTE_S,
    EndedFigures,
    OutcomeGroup,
    Refusal,
    SplitObservation,
)
from inference.gateway.records.log_line import SHADOW, Asked, LogLine
from inference.operations.structure import StructureOutcome

CONFORMS: Mapping[StructureOutcome | None, bool] = {
    StructureOutcome.CONFORMED: True,
    StructureOutcome.MALFORMED: False,
}

OF_VERSION = (EngineFailed.code, AdapterLoadFailed.code)
"""Failures that say something of the version of a request."""


def shown_code(line: LogLine, asked: Asked, error: InferenceError | None) -> str:
    """The code under which the request is counted: its error's, or how it ended."""
    replayed = asked.request is None and error is None
    return "replayed" if replayed else code_of(error, line.finish_reason)


def group_of(
    line: LogLine, asked: Asked, error: InferenceError | None, now: float
) -> OutcomeGroup | None:
    """The group of a request that ended at `now` (unix time); None if its tenant is not known."""
    who = _whose(asked, error)
    if who is None:
        return None
    target = None if asked.request is None else asked.request.target
    return OutcomeGroup(
        int(now) // MINUTE_S * MINUTE_S,
        *who,
        (target and target.version_id) or 0,
        target.adapter.own_name if target is not None and target.adapter is not None else "",
        line.base_model or "",
        line.outcome,
        shown_code(line, asked, error),
        error.limit_kind if error is not None else "",
        error.limit_scope if error is not None else "",
    )


def refusal_of(
    line: LogLine, group: OutcomeGroup, error: InferenceError, *, started_at: float, total_s: float
) -> Refusal:
    """The request that ended in this error, with its message, which only its tenant sees."""
    return Refusal(
        id=line.request_id,
        started_at=started_at,
        model=line.model or "",
        surface=line.surface,
        status=error.http_status,
        message=error.message,
        total_s=total_s,
        tenant_id=group.tenant_id,
        key_id=group.key_id,
        version_id=group.version_id,
        adapter=group.adapter,
        base_model=group.base_model,
        outcome=group.outcome,
        code=group.code,
        limit_kind=group.limit_kind,
        limit_scope=group.limit_scope,
        trace_id=line.trace_id or "",
    )


def observation_of(
    line: LogLine, asked: Asked, structure: StructureOutcome | None, now: float
) -> SplitObservation | None:
    """What became of a request of a split, that ended at `now` (unix time); None if it is of none,
    or says nothing of its version: it was refused or cancelled, or used no adapter. A copy of a
    shadow may also fail for having waited too long, behind what clients asked for."""
    target = None if asked.request is None else asked.request.target
    if target is None or target.arm is None or target.adapter is None:
        return None
    if line.outcome not in (COMPLETED, FAILED):
        return None
    if asked.surface == SHADOW and line.outcome == FAILED and line.error not in OF_VERSION:
        return None
    assert asked.request is not None
    return SplitObservation(
        request_id=asked.request.id,
        split_id=target.arm.split_id,
        candidate=target.arm.candidate,
        key=target.arm.key,
        weight=target.arm.weight,
        failed=line.outcome == FAILED,
        cut=line.finish_reason == "length",
        conforms=CONFORMS.get(structure),
        ttft_s=asked.request.ttft_s,
        ended_at=now,
    )


def figures_of(
    line: LogLine, asked: Asked, structure: StructureOutcome | None = None
) -> EndedFigures:
    """What the request used, how long it took, and what was found of its answer's structure."""
    request = asked.request
    if request is None or request.done is None:
        return EndedFigures()
    usage = request.done.usage
    return EndedFigures(
        usage.prompt_tokens,
        usage.cached_tokens,
        usage.completion_tokens,
        request.price.cost(usage),
        request.ttft_s,
        request.total_s if line.outcome == COMPLETED else None,
        structure,
    )


def _whose(asked: Asked, error: InferenceError | None) -> tuple[int, int] | None:
    """The ids of the request's tenant and API key; None if they are not known."""
    if asked.grant is not None:
        return asked.grant.tenant_id, asked.grant.key_id
    if isinstance(error, InvalidApiKey) and error.key_id:
        return error.tenant_id, error.key_id
    return None
