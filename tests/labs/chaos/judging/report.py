"""The tables of a run."""

from __future__ import annotations

from collections import Counter
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.labs.chaos.judging.facts import Facts, Life, Received
from tests.labs.chaos.judging.rules.check import Check

WITHOUT_DEATH = {
    "backend": "one backend of {}",
    "hang": "{} stopped for seconds",
    "cut": "links to {} cut",
}
"""Strikes after which no process is away."""
HOW = {
    "drain": "{} drained",
    "roll": "{} drained",
    "training": "{} with saved states",
}
"""Strikes that are shown as more than a process's name."""
MAX_FAULTS = 20
"""Faults shown per check; the first ones tell what is wrong."""


def show(console: Console, checks: list[Check], facts: Facts, seconds: float) -> None:
    """Print what was killed, what clients got, and the verdict."""
    console.print(_kills(facts, seconds))
    console.print(_outcomes(facts.received))
    console.print(_verdict(checks))
    for check in checks:
        for fault in check.faults[:MAX_FAULTS]:
            console.print(f"{check.title}: {fault}", style="red", markup=False)
        if len(check.faults) > MAX_FAULTS:
            console.print(f"... and {len(check.faults) - MAX_FAULTS} more", style="red")


def _kills(facts: Facts, seconds: float) -> Table:
    table = Table("struck", "times", "a minute", "back after s", "at most", title="Kills")
    for (kind, name), times in sorted(Counter((one.kind, one.name) for one in facts.kills).items()):
        a_minute = f"{times / seconds * 60:.1f}"
        if kind in WITHOUT_DEATH:
            table.add_row(WITHOUT_DEATH[kind].format(name), str(times), a_minute)
        else:
            away = _away([life for life in facts.lives if life.name == name])
            shown = HOW.get(kind, "{}").format(name)
            table.add_row(shown, str(times), a_minute, f"{median(away):.1f}", f"{max(away):.1f}")
    all_times = len(facts.kills)
    table.add_row("all", str(all_times), f"{all_times / seconds * 60:.1f}", style="bold")
    return table


def _away(lives: list[Life]) -> list[float]:
    """Seconds from each death of a process until it is ready again."""
    deaths = [life.ended for life in lives if life.ended is not None]
    ready = [life.ready for life in lives if life.ready is not None]
    away = [min([at - death for at in ready if at > death], default=0.0) for death in deaths]
    return away or [0.0]


def _outcomes(received: list[Received]) -> Table:
    tenants = sorted({one.tenant for one in received})
    table = Table("what clients got", "all", *tenants, title="Requests")
    counted = Counter((one.outcome, one.tenant) for one in received)
    totals = Counter(one.outcome for one in received)
    for outcome, total in totals.most_common():
        shown = (str(counted[outcome, tenant] or "") for tenant in tenants)
        table.add_row(outcome, str(total), *shown)
    by_tenant = Counter(one.tenant for one in received)
    sums = (str(by_tenant[tenant]) for tenant in tenants)
    table.add_row("all", str(len(received)), *sums, style="bold")
    return table


def _verdict(checks: list[Check]) -> Table:
    table = Table("what must hold", "", "compared", title="Verdict")
    for check in checks:
        mark = f"[red]{len(check.faults)} faults" if check.faults else "[green]ok"
        table.add_row(check.title, mark, check.figures)
    return table
