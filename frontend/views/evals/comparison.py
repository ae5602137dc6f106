"""Two completed runs of an eval on the rows that both have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from frontend.lists import id_in_url, words_of
from frontend.pages import tenant_page
from frontend.views.evals.evals import eval_of
from frontend.views.evals.runs import PAGE
from frontend.views.evals.wording import result_of
from tenants.evals.comparing import FEW_ROWS, PairedOutcomes, difference
from tenants.models import Eval, EvalItem, EvalRun
from tenants.models.evals import EvalStatus
from tenants.permissions import Caller, Permission

PASSED = "p"
"""How a passed grade is noted in an item's `outcomes`."""
REGRESSION, IMPROVEMENT, UNCHANGED = "regression", "improvement", "unchanged"

Graded = Mapping[int, tuple[bool, str]]
"""The rows of a run by their numbers: whether each passed, and the outcomes of its grades."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The rows that both runs have, by their numbers."""

    a: Graded
    b: Graded

    @property
    def overall(self) -> PairedOutcomes:
        return PairedOutcomes.of((self.a[row][0], self.b[row][0]) for row in self._common)

    def of_criterion(self, place: int) -> PairedOutcomes:
        """By the criterion at this place alone."""
        return PairedOutcomes.of(
            (_met(self.a[row], place), _met(self.b[row], place)) for row in self._common
        )

    @property
    def changes(self) -> list[tuple[int, str]]:
        """All rows: regressions first, then improvements."""
        changed = [(row, _change(self.a[row][0], self.b[row][0])) for row in self._common]
        order = [REGRESSION, IMPROVEMENT, UNCHANGED]
        return sorted(changed, key=lambda one: (order.index(one[1]), one[0]))

    @property
    def _common(self) -> set[int]:
        return set(self.a) & set(self.b)


@never_cache
@require_GET
@tenant_page(Permission.USE_FILES)
def compare(request: HttpRequest, caller: Caller, eval_id: str) -> HttpResponse:
    """The runs `a` and `b` of the query."""
    eval = eval_of(caller.tenant, eval_id)
    ids = [words_of(request, name) for name in ("a", "b")]
    found = eval.runs.listed().filter(status=EvalStatus.COMPLETED).in_bulk(ids)
    if len(found) < 2:
        messages.error(request, "Choose two different completed runs of this eval.")
        return redirect("evals-one", caller.tenant.slug, eval.pk)
    runs = [found[id] for id in ids]
    comparison = RunComparison(*map(_graded, runs))
    changes = comparison.changes
    page, last = _page(changes, id_in_url(request, "after"))
    kinds = [kind for _, kind in changes]
    context = {
        "eval": eval,
        "a": runs[0],
        "b": runs[1],
        "common": len(changes),
        "few": len(changes) < FEW_ROWS,
        "overall": difference(comparison.overall),
        "criteria": [*_criteria(eval, comparison)],
        "regressions": kinds.count(REGRESSION),
        "improvements": kinds.count(IMPROVEMENT),
        "rows": [*_rows(runs, page)],
        "last": last,
    }
    return render(request, "evals/compare.html", context)


def _graded(run: EvalRun) -> Graded:
    rows = run.items.values_list("number", "status", "outcomes")
    return {number: (status == "passed", outcomes) for number, status, outcomes in rows}


def _met(row: tuple[bool, str], place: int) -> bool:
    return row[1][place : place + 1] == PASSED


def _change(before: bool, after: bool) -> str:
    if before == after:
        return UNCHANGED
    return REGRESSION if before else IMPROVEMENT


def _criteria(eval: Eval, comparison: RunComparison) -> Iterator[Mapping[str, Any]]:
    for place, criterion in enumerate(eval.criteria):
        found = difference(comparison.of_criterion(place))
        yield {"name": criterion["name"], "type": criterion["type"], "difference": found}


def _page(
    changes: Sequence[tuple[int, str]], after: int | None
) -> tuple[Sequence[tuple[int, str]], int | None]:
    """The rows below the one with the number `after`, and the last of them if more follow."""
    numbers = [number for number, _ in changes]
    start = numbers.index(after) + 1 if after in numbers else 0
    page = changes[start : start + PAGE]
    return page, page[-1][0] if start + PAGE < len(changes) else None


def _rows(runs: Sequence[EvalRun], page: Sequence[tuple[int, str]]) -> Iterator[Mapping[str, Any]]:
    items = EvalItem.objects.filter(run__in=runs, number__in=[number for number, _ in page])
    found = {(item.run_id, item.number): result_of(item) for item in items}
    for number, change in page:
        a, b = (found[run.pk, number] for run in runs)
        yield {"number": number, "change": change, "a": a, "b": b}
