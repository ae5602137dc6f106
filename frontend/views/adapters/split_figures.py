"""Splits, and required evals, as the page of their adapter shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, OuterRef, QuerySet
from django.db.models.functions import JSONObject

from inference.splitting import StickyBy
from tenants.models import Adapter, Eval, EvalRun, PromotionGate, Split
from tenants.models.evals import ENDED
from tenants.models.splits import Guard, GuardKind
from tenants.splits.judge import GuardVerdict

ENDED_SHOWN = 5
MOST = 20
"""Splits that are read: those that run, of different aliases, and the last ones."""
COLUMNS = (
    "id", "alias", "state", "reason", "weight", "weights", "min_requests", "max_requests",
    "max_hours", "sticky", "header", "guards", "rolls_back", "promotes", "shadow_key_id", "figures",
    "ended_at",
)  # fmt: skip
GATE = ("id", "alias", "min_pass_rate", "eval__pk", "eval__name")
NUMBERS = ("stable__number", "candidate__number")
EVAL = ("eval_run", "eval_run__eval", "eval_run__status")
STICKY = {
    StickyBy.USER: "the field user",
    StickyBy.SAFETY_IDENTIFIER: "the field safety_identifier",
    StickyBy.CONVERSATION: "the conversation",
    StickyBy.HEADER: "a header",
    StickyBy.REQUEST: "nothing: each request for itself",
}
VERDICTS = {
    GuardVerdict.FAILED: "worse",
    GuardVerdict.PASSED: "not worse",
    GuardVerdict.UNDECIDED: "not certain yet",
}


@dataclass(frozen=True, slots=True)
class GuardRow:
    """A guard's figures, in words."""

    label: str
    stable: str
    candidate: str
    difference: str
    interval: str
    margin: str
    verdict: str
    tone: str


@dataclass(frozen=True, slots=True)
class ShownSplit:
    """A split on the page of its adapter. `split` is not to be saved."""

    split: Split
    stable: int
    candidate: int
    """The numbers of the versions."""
    eval_run: EvalRun | None
    """With its eval's id and its status alone."""

    @property
    def eval_running(self) -> bool:
        return self.eval_run is not None and self.eval_run.status not in ENDED

    @property
    def guards(self) -> list[GuardRow]:
        return list(_rows(self.split))

    @property
    def requests(self) -> Sequence[int]:
        found: Sequence[int] = self.split.figures["requests"]
        return found

    @property
    def sticky(self) -> str:
        if self.split.sticky == StickyBy.HEADER:
            return f"the header {self.split.header}"
        return STICKY[StickyBy(self.split.sticky)]


def with_splits(adapters: QuerySet[Adapter]) -> QuerySet[Adapter]:
    """The adapters with their last splits, and what their aliases require, which saves queries."""
    columns = JSONObject(**{name: name for name in (*COLUMNS, *NUMBERS, *EVAL)})
    latest = Split.objects.order_by(F("ended_at").desc(nulls_first=True), "-pk")
    of_adapter = latest.filter(adapter=OuterRef("pk")).values(shown=columns)
    gate = JSONObject(**{name: name for name in GATE})
    gates = PromotionGate.objects.filter(adapter=OuterRef("pk")).values(shown=gate)
    return adapters.annotate(
        found_splits=ArraySubquery(of_adapter[:MOST]), found_gates=ArraySubquery(gates)
    )


def gates_of(adapter: Any) -> list[PromotionGate]:
    """What the aliases of an adapter require (`with_splits`)."""
    found = []
    for fields in adapter.found_gates:
        eval = Eval(pk=fields.pop("eval__pk"), name=fields.pop("eval__name"))
        found.append(PromotionGate(eval=eval, **fields))
    return found


def splits_of(adapter: Any) -> Mapping[str, Any]:
    """The splits on the page of an adapter (`with_splits`): those that run, and the last ones; and
    the aliases that require an eval."""
    found = [_shown(fields) for fields in adapter.found_splits]
    ended = [one for one in found if one.split.ended_at is not None]
    return {
        "splits": [one for one in found if one.split.ended_at is None],
        "ended_splits": ended[:ENDED_SHOWN],
        "gated": {gate["alias"] for gate in adapter.found_gates},
    }


def _shown(fields: dict[str, Any]) -> ShownSplit:
    stable, candidate = (fields.pop(name) for name in NUMBERS)
    id, eval_id, status = (fields.pop(name) for name in EVAL)
    run = EvalRun(pk=id, eval_id=eval_id, status=status) if id is not None else None
    if fields["ended_at"] is not None:
        fields["ended_at"] = datetime.fromisoformat(fields["ended_at"])
    return ShownSplit(Split(**fields), stable, candidate, run)


def _rows(split: Split) -> Iterator[GuardRow]:
    guards = {guard.id: guard for guard in split.parsed_guards}
    for found in split.figures["guards"]:
        verdict, guard = GuardVerdict(found["verdict"]), guards[found["id"]]
        yield GuardRow(
            found["label"].capitalize(),
            _mean(guard, found["stable"]),
            _mean(guard, found["candidate"]),
            _points(found["difference"]),
            f"{_points(found['low'])} to {_points(found['high'])}",
            f"{100 * found['margin']:.3g}",
            VERDICTS[verdict],
            {GuardVerdict.FAILED: "bad", GuardVerdict.PASSED: "ok"}.get(verdict, ""),
        )


def _mean(guard: Guard, arm: Mapping[str, Any]) -> str:
    if arm["mean"] is None:
        return "none"
    if guard.kind == GuardKind.SCORE:
        return f"{arm['mean']:.3g} of {arm['requests']:,}"
    return f"{100 * arm['mean']:.3g}% of {arm['requests']:,}"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "\u2212")
