"""The output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

screen = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
notes = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
"""For progress and remarks, to keep piped output clean."""


def show(
    body: Any, *, as_json: bool, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Print `body` as JSON, or a table, whose first column is never cut, because its names are
    arguments of other commands."""
    if as_json:
        show_json(body)
        return
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    cells = [[_cell(one) for one in row] for row in rows]
    table.columns[0].min_width = max((len(row[0]) for row in cells), default=0)
    for row in cells:
        table.add_row(*row)
    screen.print(table)


def show_json(body: Any) -> None:
    sys.stdout.write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")


def say(text: str) -> None:
    """Print a remark for people, to standard error."""
    notes.print(text)


def size(count: int) -> str:
    """A number of bytes in a readable unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def moment(time: str | None) -> str | None:
    """A time of the management API, to the second."""
    return time and time[:19].replace("T", " ")


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    text = "-" if value is None or value == "" else str(value)
    # Names and messages may come from others: keep control characters from the terminal.
    return "".join(char if char.isprintable() else " " for char in text)
