"""`lorikeet usage`: what was used, and what it cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from lorikeet.api import connected
from lorikeet.output import AsJson, show

TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")


def usage(
    days: Annotated[int, typer.Option(min=1, max=1000, help="Number of days up to now.")] = 30,
    by: Annotated[
        str,
        typer.Option(
            help="Comma-separated fields to group by: key, member, adapter, model, base_model."
        ),
    ] = "model",
    bucket: Annotated[
        str, typer.Option(help="Width of the sums: all, month, day or hour.")
    ] = "all",
    costs: Annotated[bool, typer.Option("--costs", help="Show costs instead of tokens.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what the tenant used."""
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    start = (end - timedelta(days=days)).replace(hour=0)
    query = {"bucket": bucket, "by": by, "start": start.isoformat(), "end": end.isoformat()}
    with connected() as api:
        found = api.all("costs" if costs else "usage", **query)
    groups = ["key_name" if group == "key" else group for group in by.split(",") if group]
    figures = ["requests", *(["cost", "currency"] if costs else TOKENS)]
    columns = [*(["start"] if bucket != "all" else []), *groups, *figures]
    show(
        found,
        as_json=as_json,
        columns=[column.replace("_", " ").capitalize() for column in columns],
        rows=[[line.get(column) for column in columns] for line in found],
    )
