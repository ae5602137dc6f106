"""Completed runs of an eval on the rows that all of them have: one with another, or with two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from frontend.lists import id_in_url, words_of
from frontend.pages import tenant_page
from frontend.views.evals.evals import eval_of
from frontend.views.evals.runs import PAGE
from frontend.views.evals.wording import cut, result_of
from tenants.evals.comparing import (
    FEW_ROWS,
    PairedDifference,
    PairedOutcomes,
    difference,
    mean_difference,
)
from tenants.models import Eval, EvalItem, EvalRun
from tenants.models.evals import EvalStatus
from tenants.permissions import Caller, Permission

PASSED = "p"
"""How a passed grade is noted in an item's `outcomes`."""
REGRESSION, IMPROVEMENT, UNCHANGED = "regression", "improvement", "unchanged"
MAX_TITLE = 40
"""Characters of a run's name in headings."""
SCORED = ("text_similarity", "score_model", "logprob")
"""Graders whose scores say how good an answer is, higher ones being better."""


class GradedRow(NamedTuple):
    """Whether a row passed, and what each criterion found."""

    passed: bool
    outcomes: str
    scores: Sequence[float | None]

    def met(self, place: int) -> bool:
        """Whether it meets the criterion at this place."""
        return self.outcomes[place : place + 1] == PASSED

    def score(self, place: int) -> float | None:
        """Its score by the criterion at this place; None without one."""
        return self.scores[place] if place < len(self.scores) else None


Graded = Mapping[int, GradedRow]
"""The rows of a run by their numbers."""


class RowChange(NamedTuple):
    """A row of the run that is compared. `gained` is by how much it scored above the best other
    run, None if no criterion gives scores."""

    number: int
    kind: str
    gained: float | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """A run with others, on the rows that all have. `scored` are the places of criteria that give
    scores."""

    others: Sequence[Graded]
    new: Graded
    scored: Sequence[int] = ()

    @property
    def common(self) -> list[int]:
        """The numbers of the rows."""
        return sorted(set(self.new).intersection(*self.others))

    @property
    def overall(self) -> list[PairedDifference | None]:
        """By each other run: the shares that passed."""
        return [
            difference(
                PairedOutcomes.of((other[row].passed, self.new[row].passed) for row in self.common)
            )
            for other in self.others
        ]

    def of_criterion(self, place: int) -> list[PairedDifference | None]:
        """By each other run: the shares that met the criterion at this place."""
        return [
            difference(
                PairedOutcomes.of(
                    (other[row].met(place), self.new[row].met(place)) for row in self.common
                )
            )
            for other in self.others
        ]

    def of_scores(self, place: int) -> list[PairedDifference | None]:
        """By each other run: the mean scores by the criterion at this place, of the rows that have
        one in every run."""
        rows = [self._scores(row, place) for row in self.common]
        complete = [scores for scores in rows if None not in scores]
        return [
            mean_difference([(scores[which] or 0.0, scores[-1] or 0.0) for scores in complete])
            for which in range(len(self.others))
        ]

    @property
    def changes(self) -> list[RowChange]:
        """All rows: if there are scores, those first that lost most against the best other run;
        else regressions first, then improvements."""
        order = [REGRESSION, IMPROVEMENT, UNCHANGED]
        return sorted(
            map(self._change, self.common),
            key=lambda one: (
                order.index(one.kind) if one.gained is None else one.gained,
                one.number,
            ),
        )

    def _change(self, row: int) -> RowChange:
        before, after = any(other[row].passed for other in self.others), self.new[row].passed
        kind = UNCHANGED if before == after else REGRESSION if before else IMPROVEMENT
        return RowChange(row, kind, self._gained(row) if self.scored else None)

    def _gained(self, row: int) -> float:
        """The sum over criteria; an answer without a score counts as 0."""
        return sum(
            (scores[-1] or 0.0) - max(score or 0.0 for score in scores[:-1])
            for scores in (self._scores(row, place) for place in self.scored)
        )

    def _scores(self, row: int, place: int) -> list[float | None]:
        """Of each other run, and last of the run that is compared."""
        return [run[row].score(place) for run in (*self.others, self.new)]


@never_cache
@require_GET
@tenant_page(Permission.USE_FILES)
def compare(request: HttpRequest, caller: Caller, eval_id: str) -> HttpResponse:
    """The run `b` of the query, with `a` and, if it is there, `c`."""
    eval = eval_of(caller.tenant, eval_id)
    ids = [words_of(request, name) for name in ("a", "c", "b")]
    ids = [id for id in ids if id]
    found = eval.runs.listed().filter(status=EvalStatus.COMPLETED).in_bulk(ids)
    if len(found) < max(2, len(ids)):
        messages.error(request, "Choose two different completed runs of this eval.")
        return redirect("evals-one", caller.tenant.slug, eval.pk)
    runs = [found[id] for id in ids]
    scored = [place for place, one in enumerate(eval.criteria) if one["type"] in SCORED]
    *others, new = map(_graded, runs)
    comparison = RunComparison(others, new, scored)
    changes = comparison.changes
    page, last = _page(changes, id_in_url(request, "after"))
    kinds = [one.kind for one in changes]
    two = len(runs) == 2
    titles = ["before", "after"] if two else [cut(run.label, MAX_TITLE) for run in runs]
    context = {
        "eval": eval,
        "two": two,
        "runs": list(zip(titles, runs, strict=True)),
        "newer": titles[-1],
        "common": len(changes),
        "few": len(changes) < FEW_ROWS,
        "overall": list(zip(titles, comparison.overall, strict=False)) if changes else [],
        "criteria": [*_criteria(eval, comparison, titles)],
        "means": [*_means(eval, comparison, titles)],
        "scored": bool(scored),
        "regressions": kinds.count(REGRESSION),
        "improvements": kinds.count(IMPROVEMENT),
        "rows": [*_rows(runs, page)],
        "last": last,
    }
    return render(request, "evals/compare.html", context)


def _graded(run: EvalRun) -> Graded:
    rows = run.items.values_list("number", "status", "outcomes", "scores")
    return {
        number: GradedRow(status == "passed", outcomes, scores)
        for number, status, outcomes, scores in rows
    }


def _criteria(
    eval: Eval, comparison: RunComparison, titles: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    for place in range(len(eval.criteria)):
        yield _row_of(eval, place, comparison.of_criterion(place), titles)


def _means(
    eval: Eval, comparison: RunComparison, titles: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """The mean scores, by the criteria that give some and for which there are any."""
    for place in comparison.scored:
        found = comparison.of_scores(place)
        if None not in found:
            yield _row_of(eval, place, found, titles)


def _row_of(
    eval: Eval, place: int, found: Sequence[PairedDifference | None], titles: Sequence[str]
) -> Mapping[str, Any]:
    """A criterion with the differences from each other run, by its title."""
    criterion, differences = eval.criteria[place], list(zip(titles, found, strict=False))
    return {"name": criterion["name"], "type": criterion["type"], "differences": differences}


def _page(
    changes: Sequence[RowChange], after: int | None
) -> tuple[Sequence[RowChange], int | None]:
    """The rows below the one with the number `after`, and the last of them if more follow."""
    numbers = [one.number for one in changes]
    start = numbers.index(after) + 1 if after in numbers else 0
    page = changes[start : start + PAGE]
    return page, page[-1].number if start + PAGE < len(changes) else None


def _rows(runs: Sequence[EvalRun], page: Sequence[RowChange]) -> Iterator[Mapping[str, Any]]:
    items = EvalItem.objects.filter(run__in=runs, number__in=[one.number for one in page])
    found = {(item.run_id, item.number): result_of(item) for item in items}
    for one in page:
        results = [found[run.pk, one.number] for run in runs]
        yield {"change": one, "item": results[-1], "results": results}
