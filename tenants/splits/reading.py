"""Reads the requests of a split into the tests of its guards, each request and each score once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import connection
from django.utils import timezone

from tenants.models import Split, SplitRequest, SplitState
from tenants.models.evals import EvalStatus
from tenants.models.splits import Guard, GuardKind
from tenants.splits.judge import ALPHA, GuardVerdict, JudgedGuard, SplitPlan, verdict_of
from tenants.splits.sequential import MeanTest, SequentialTest, ShareTest

BATCH = 5000
"""Requests read in one transaction: about 0.3 s."""
MAX_MESSAGE = 100
"""Characters of the message of a run that failed."""
LABELS: Mapping[GuardKind, str] = {
    GuardKind.ERRORS: "errors",
    GuardKind.CUTS: "answers cut by length",
    GuardKind.SLOW: "slow first tokens",
    GuardKind.STRUCTURE: "answers that miss their schema",
}
# A score of the same name from each source is one: the first that is read.
SCORES = """
UPDATE tenants_splitrequest one SET scored = one.scored || %(guard)s::varchar
FROM (
    SELECT DISTINCT ON (request.id) request.id, score.number
    FROM tenants_requestscore score
    JOIN tenants_splitrequest request
      ON request.split_id = %(split)s AND request.request_id = score.request_id
    WHERE score.tenant_id = %(tenant)s AND score.name = %(name)s AND score.number IS NOT NULL
      AND score.started_at >= %(since)s AND NOT %(guard)s = ANY(request.scored)
    ORDER BY request.id, score.created_at
    LIMIT %(most)s
) found
WHERE found.id = one.id
RETURNING one.id, one.candidate, one.key, one.weight, found.number
"""


def label(guard: Guard) -> str:
    """The guard, for people."""
    if guard.kind == GuardKind.SCORE:
        return f"score {guard.name}"
    if guard.kind == GuardKind.SLOW:
        return f"first tokens after {guard.seconds:g} s"
    return LABELS[guard.kind]


def tests_of(split: Split) -> dict[str, SequentialTest]:
    """The tests of its guards, by their ids."""
    return {
        guard.id: (MeanTest if guard.kind == GuardKind.SCORE else ShareTest).load(
            split.tests.get(guard.id, {})
        )
        for guard in split.parsed_guards
    }


def read(split: Split) -> bool:
    """Read what is new, at most BATCH requests and as many scores of each guard; whether there may
    be more. Mutates the split, which is to be saved in the same transaction, and holds its lock."""
    tests, guards = tests_of(split), split.parsed_guards
    rows = list(split.requests.filter(is_read=False).order_by("id")[:BATCH])
    for row in sorted(rows, key=lambda one: (one.ended_at, one.pk)):
        for guard in guards:
            if (value := _value(guard, row)) is not None:
                share = chance(split, row.weight)
                tests[guard.id].add(value, row.key, share, candidate=row.candidate)
    SplitRequest.objects.filter(pk__in=[row.pk for row in rows]).update(is_read=True)
    new_scores = 0
    for guard in guards:
        if guard.kind == GuardKind.SCORE:
            new_scores = max(new_scores, _read_scores(split, guard, tests[guard.id]))
    split.tests = {id: test.dump() for id, test in tests.items()}
    _count(split, rows)
    split.figures = figures(split, tests)
    return len(rows) >= BATCH or new_scores >= BATCH


def chance(split: Split, weight: int) -> float:
    """With which chance a request is the candidate's. Those of a shadow are pairs."""
    return 0.5 if split.is_shadow else weight / 100


def _value(guard: Guard, row: SplitRequest) -> float | None:
    """1 if the request is bad, None if it does not count."""
    if guard.kind == GuardKind.ERRORS:
        return float(row.failed)
    if guard.kind == GuardKind.CUTS:
        return None if row.failed else float(row.cut)
    if guard.kind == GuardKind.SLOW:
        return None if row.ttft_s is None else float(row.ttft_s > guard.seconds)
    if guard.kind == GuardKind.STRUCTURE:
        return None if row.conforms is None else float(not row.conforms)
    return None


def _read_scores(split: Split, guard: Guard, test: SequentialTest) -> int:
    values: dict[str, Any] = {
        "guard": guard.id,
        "split": split.pk,
        "tenant": split.adapter.tenant_id,
        "name": guard.name,
        "since": split.created_at,
        "most": BATCH,
    }
    with connection.cursor() as cursor:
        cursor.execute(SCORES, values)
        found = sorted(cursor.fetchall())
    for _, candidate, key, weight, number in found:
        test.add(guard.badness(number), key, chance(split, weight), candidate=candidate)
    return len(found)


def _count(split: Split, rows: Iterable[SplitRequest]) -> None:
    counts = split.figures["requests"]
    for row in rows:
        counts[row.candidate] += 1
        split.step_requests += row.candidate and row.weight == split.weight
    split.figures = split.figures | {"requests": counts}


def figures(split: Split, tests: Mapping[str, SequentialTest]) -> dict[str, Any]:
    """For people: the requests of the stable version and of the candidate, and for each guard the
    mean of each, their difference with its interval, and the verdict. Shares from 0 to 1; the means
    of a score in its own range, and a difference is positive if the candidate is worse."""
    guards = split.parsed_guards
    return {
        "at": timezone.now().isoformat(),
        "requests": split.figures["requests"],
        "guards": [_figures(guard, tests[guard.id], len(guards)) for guard in guards],
    }


def _figures(guard: Guard, test: SequentialTest, guards: int) -> dict[str, Any]:
    difference = test.difference(ALPHA / guards)
    arms = {"stable": test.stable, "candidate": test.candidate}
    return {
        "id": guard.id,
        "label": label(guard),
        "margin": guard.margin,
        "verdict": verdict_of(test, guard.margin, guards),
        "difference": round(difference.value, 6),
        "low": round(difference.low, 6),
        "high": round(difference.high, 6),
        **{
            name: {
                "requests": arm.requests,
                "mean": round(_shown(guard, arm.mean), 6) if arm.requests else None,
            }
            for name, arm in arms.items()
        },
    }


def _shown(guard: Guard, mean: float) -> float:
    if guard.kind == GuardKind.SCORE:
        return guard.high - mean * (guard.high - guard.low)
    return mean


def judged(split: Split) -> list[JudgedGuard]:
    """The guards with the verdicts of the last reading."""
    return [
        JudgedGuard(one["label"], GuardVerdict(one["verdict"])) for one in split.figures["guards"]
    ]


def plan_of(split: Split) -> SplitPlan:
    blocked, missed = _eval_words(split)
    return SplitPlan(
        weight=split.weight,
        next_weight=split.next_weight,
        min_requests=split.min_requests,
        max_requests=split.max_requests,
        max_hours=split.max_hours,
        rolls_back=split.rolls_back,
        promotes=split.promotes,
        paused=split.state == SplitState.PAUSED,
        requests=sum(split.figures["requests"]),
        step_requests=split.step_requests,
        hours=(timezone.now() - split.created_at).total_seconds() / 3600,
        blocked=blocked if split.promotes else "",
        missed=missed,
    )


def _eval_words(split: Split) -> tuple[str, str]:
    """Why the candidate may not be promoted because of an eval, and that it failed in it; empty if
    that is not so. A run that has failed itself, or in which too many rows errored, tells nothing.
    """
    gate = split.adapter.gates.filter(alias=split.alias).select_related("eval").first()
    why, run = gate.missed(split.candidate) if gate else "", split.eval_run
    if gate is None or not why or run is None or run.eval_id != gate.eval_id:
        return why, ""
    if run.ended_at is None:
        return f"{gate.requirement}: eval running.", ""
    if run.status != EvalStatus.COMPLETED:
        message = (run.error or {}).get("message", "It was cancelled.")
        return f"{gate.requirement}: its run {run.status}. {message[:MAX_MESSAGE]}", ""
    last = gate.last_run(split.candidate)
    return why, why if last is not None and gate.is_missed_by(last) else ""
