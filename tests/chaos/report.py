"""The tables of a run."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from tests.chaos.facts import Kill, Received
from tests.chaos.verdict import Check

MAX_FAULTS = 20
"""Of one check that are shown; the first ones say what is wrong."""


def show(
    console: Console,
    checks: list[Check],
    kills: list[Kill],
    received: list[Received],
    seconds: float,
) -> None:
    """Print what was killed, what clients got, and the verdict."""
    console.print(_kills(kills, seconds))
    console.print(_outcomes(received))
    console.print(_verdict(checks))
    for check in checks:
        for fault in check.faults[:MAX_FAULTS]:
            console.print(f"{check.title}: {fault}", style="red", markup=False)
        if len(check.faults) > MAX_FAULTS:
            console.print(f"... and {len(check.faults) - MAX_FAULTS} more", style="red")


def _kills(kills: list[Kill], seconds: float) -> Table:
    table = Table("killed with -9", "times", "a minute", title="Kills")
    for (kind, name), times in sorted(Counter((one.kind, one.name) for one in kills).items()):
        shown = f"one backend of {name}" if kind == "backend" else name
        table.add_row(shown, str(times), f"{times / seconds * 60:.1f}")
    table.add_row("all", str(len(kills)), f"{len(kills) / seconds * 60:.1f}", style="bold")
    return table


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
