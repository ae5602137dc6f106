"""What a run found, as a table for the terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from inference.load.figures import SHARES, LatencyTargets, LoadFigures, Spread, by_tenant
from inference.load.sending import LoadOutcome

SHOWN_TENANTS = 20
LATE_S = 0.05
"""If the sender was later than this for one request in a hundred, it was too slow itself."""
COLUMNS = (
    "tenant", "planned", "answered", "errors", "good", "TTFT", "TPOT", "end to end",
)  # fmt: skip


@dataclass(slots=True)
class TrafficReport:
    """A run's outcomes; `about` says what was sent where, as names and texts."""

    about: dict[str, str]
    targets: LatencyTargets
    outcomes: list[LoadOutcome]
    wall_s: float
    total: LoadFigures = field(init=False)
    tenants: dict[str, LoadFigures] = field(init=False)

    def __post_init__(self) -> None:
        self.total = self._figures(self.outcomes)
        self.tenants = {
            name: self._figures(outcomes) for name, outcomes in by_tenant(self.outcomes).items()
        }

    def _figures(self, outcomes: list[LoadOutcome]) -> LoadFigures:
        return LoadFigures.of(outcomes, self.targets, self.wall_s)

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures must know."""
        total, notes = self.total, []
        if total.late and total.late.percentiles["p99"] > LATE_S:
            notes.append(
                f"The sender itself was late: p99 {milliseconds(total.late.percentiles['p99'])}, "
                "which is part of all latencies. Use a faster machine for it, or a lower rate."
            )
        if total.planned != total.answered:
            notes.append(
                "Latencies are of answered requests alone. Those without an answer are in errors, "
                "and not good."
            )
        if 0 < total.answered < 1 / (1 - SHARES["p99.9"]):
            notes.append(
                f"With {total.answered:,} answers p99.9 says little more than the slowest one."
            )
        return notes

    def table(self) -> Table:
        """All and each tenant, in a row each."""
        table = Table(*COLUMNS, caption=f"Latencies in ms: {' / '.join(SHARES)}")
        for name, found in self.rows():
            table.add_row(*map(Text, self.cells(name, found)))  # names are no markup
        return table

    def rows(self) -> list[tuple[str, LoadFigures]]:
        """The table's names and figures."""
        shown = list(self.tenants.items())[:SHOWN_TENANTS]
        return [("all", self.total), *(shown if len(self.tenants) > 1 else ())]

    def cells(self, name: str, found: LoadFigures) -> list[str]:
        """A row as `COLUMNS` has it."""
        share = f"{found.good / found.planned:.1%}" if found.planned else ""
        return [
            name,
            f"{found.planned:,}",
            f"{found.answered:,}",
            ", ".join(f"{count:,} {code}" for code, count in found.errors.items()) or "0",
            f"{share}, {found.goodput:.2f}/s",
            *(_percentiles(spread) for spread in (found.ttft, found.tpot, found.e2e)),
        ]

    def facts(self) -> list[tuple[str, str]]:
        """Names and values of what else was found."""
        total = self.total
        cached = total.cached_tokens / total.prompt_tokens if total.prompt_tokens else 0.0
        facts = [
            *self.about.items(),
            ("Targets of a good answer", str(self.targets) or "none: each answer is good"),
            ("Took", f"{self.wall_s:,.1f} s"),
            ("Answers", f"{total.answered / self.wall_s if self.wall_s else 0:,.2f}/s"),
            ("Generated", f"{total.output_tokens:,} tokens, {total.tokens_s:,.0f}/s"),
            ("Prompts", f"{total.prompt_tokens:,} tokens, {cached:.0%} of them cached"),
        ]
        if total.late:
            late = milliseconds(total.late.percentiles["p99"])
            facts.append(
                ("Sender's own delay", f"p99 {late}, at most {milliseconds(total.late.largest)}")
            )
        return facts

    def as_json(self) -> dict[str, Any]:
        """All figures; times in seconds."""
        return {
            "about": self.about,
            "targets": asdict(self.targets),
            "wall_s": self.wall_s,
            "total": _json(self.total),
            "tenants": {name: _json(found) for name, found in self.tenants.items()},
            "notes": self.notes,
        }


def _json(found: LoadFigures) -> dict[str, Any]:
    return asdict(found) | {"goodput": found.goodput, "tokens_s": found.tokens_s}


def _percentiles(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return " / ".join(_short(1000 * spread.percentiles[name]) for name in SHARES)


def _short(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 10 else f"{ms:.1f}"


def milliseconds(value_s: float) -> str:
    return f"{_short(1000 * value_s)} ms"
