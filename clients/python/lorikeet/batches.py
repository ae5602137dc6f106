"""`lorikeet batches`: files of requests that are answered within a day."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress import TimeRemainingColumn as TimeRemaining

from lorikeet.api import Api, connected, segment
from lorikeet.failures import Failure, Rejected
from lorikeet.output import AsJson, notes, say, show, show_json
from lorikeet.retries import insisting
from lorikeet.transfer.files import FileUpload, sent_with_bar

app = typer.Typer(
    help="Create batches, which answer a file of requests within a day, and get their results.",
    no_args_is_help=True,
)

Id = Annotated[str, typer.Argument(metavar="BATCH", help="Id of the batch.")]
POLL_S = 2.0
PAGE = 100
ENDED = ("completed", "failed", "expired", "cancelled")


@app.command()
def create(
    file: Annotated[Path, typer.Argument(help="File with one JSON request per line.")],
    endpoint: Annotated[
        str, typer.Option(help="Endpoint of the requests; by default the `url` of the first one.")
    ] = "",
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="NAME=VALUE", help="Metadata of the batch; repeatable."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the batch has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a file of requests and create a batch of them.

    An interrupted upload resumes when the same file is sent again.
    """
    pairs = _pairs(metadata or [])
    with connected() as api:
        upload = FileUpload(api, file, "batch")
        endpoint = endpoint or _first_url(file)
        wanted = {
            "input_file_id": sent_with_bar(upload),
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": pairs or None,
        }
        batch = _made(api, wanted)
        upload.forget()
        if wait:
            batch = _ended(api, batch)
    _conclude(batch, as_json=as_json)


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = dict(one.partition("=")[::2] for one in given)
    if "" in pairs or any("=" not in one for one in given):
        raise typer.BadParameter("--metadata must have the form NAME=VALUE")
    return pairs


def _first_url(file: Path) -> str:
    with file.open("rb") as lines:
        line = next((line for line in lines if not line.isspace()), b"")
    try:
        url = json.loads(line)["url"]
    except (ValueError, TypeError, LookupError):
        url = None
    if not isinstance(url, str):
        raise Failure(f"The first line of {file} has no `url`. Set --endpoint.")
    return url


def _made(api: Api, wanted: dict[str, Any]) -> dict[str, Any]:
    """Create the batch. A repeated call creates no second one, even if the first answer was
    lost."""
    name = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    headers = {"Idempotency-Key": name}
    made: dict[str, Any] = insisting(
        lambda: api.infer("POST", "batches", json=wanted, headers=headers)
    )
    return made


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, help="Number of batches, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the batches."""
    with connected() as api:
        found = _listed(api, limit)
    show(
        found,
        as_json=as_json,
        columns=["Batch", "Status", "Endpoint", "Requests", "Answered", "Failed", "Created"],
        rows=[
            (one["id"], one["status"], one["endpoint"], *_counts(one), _at(one["created_at"]))
            for one in found
        ],
    )


def _listed(api: Api, limit: int) -> list[Any]:
    found: list[Any] = []
    while True:
        query: dict[str, Any] = {"limit": min(PAGE, limit - len(found))}
        if found:
            query["after"] = found[-1]["id"]
        page = api.infer("GET", "batches", params=query)
        found += page["data"]
        if not page["has_more"] or len(found) >= limit:
            return found


@app.command("show")
def show_(batch: Id, as_json: AsJson = False) -> None:
    """Show one batch and its problems."""
    with connected() as api:
        found = _found(api, batch)
    requests, answered, failed = _counts(found)
    times = [name for name in found if name.endswith("_at") and found[name]]
    facts = {
        "id": found["id"],
        "status": found["status"],
        "endpoint": found["endpoint"],
        "requests": requests,
        "answered": answered,
        "failed": failed,
        "tokens": found["usage"]["total_tokens"],
        **{name.replace("_", " "): _at(found[name]) for name in times},
        **{f"metadata.{name}": value for name, value in (found["metadata"] or {}).items()},
    }
    show(found, as_json=as_json, columns=["", ""], rows=facts.items())
    if not as_json:
        for problem in _problems(found):
            say(problem)


@app.command()
def wait(batch: Id, as_json: AsJson = False) -> None:
    """Wait until a batch has ended."""
    with connected() as api:
        found = _ended(api, _found(api, batch))
    _conclude(found, as_json=as_json)


@app.command()
def cancel(batch: Id, as_json: AsJson = False) -> None:
    """Cancel a batch. Existing answers are kept."""
    with connected() as api:
        found = api.infer("POST", f"batches/{segment(batch)}/cancel")
    if as_json:
        show_json(found)
    else:
        say(_summary(found))


@app.command()
def results(
    batch: Id,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file instead of standard output.")
    ] = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="Get the failed requests instead of the answers.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON array instead of one object per line.")
    ] = False,
) -> None:
    """Get the answers of a batch that has ended, one per line."""
    with connected() as api:
        found = _found(api, batch)
        if found["status"] not in ENDED:
            raise Failure(f"{_summary(found)} To wait for it: lorikeet batches wait {found['id']}")
        file_id = found["error_file_id" if errors else "output_file_id"]
        with _written(out) as file:
            if as_json:
                lines = b"".join(_content(api, file_id)).split(b"\n")
                body = [json.loads(line) for line in lines if line]
                file.write(json.dumps(body, indent=2, ensure_ascii=False).encode() + b"\n")
            else:
                file.writelines(_content(api, file_id))


def _content(api: Api, file_id: str | None) -> Iterator[bytes]:
    """The content of a file; empty if there is no file."""
    if file_id is not None:
        with api.downloaded(f"files/{segment(file_id)}/content") as parts:
            yield from parts


@contextmanager
def _written(out: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, or a file, which appears once it is complete."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    draft = out.with_name(f".{out.name}.part")
    try:
        with draft.open("wb") as file:
            yield file
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)


def _found(api: Api, id: str) -> dict[str, Any]:
    found: dict[str, Any] = api.infer("GET", f"batches/{segment(id)}")
    return found


def _ended(api: Api, batch: dict[str, Any]) -> dict[str, Any]:
    """Wait until the batch has ended, showing its progress; returns it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemaining())
    with Progress(*columns, console=notes, disable=not notes.is_terminal) as bar:
        task = bar.add_task("", total=None)
        while True:
            total, answered, failed = _counts(batch)
            bar.update(
                task,
                description=batch["status"],
                completed=answered + failed,
                total=total or None,
            )
            if batch["status"] in ENDED:
                return batch
            time.sleep(POLL_S)
            batch = insisting(partial(_found, api, batch["id"]))


def _conclude(batch: dict[str, Any], *, as_json: bool) -> None:
    """Print the batch's status.

    Raises:
        Rejected: it has ended without being complete.
    """
    if as_json:
        show_json(batch)
    if batch["status"] in ENDED and batch["status"] != "completed":
        raise Rejected("\n  ".join([_summary(batch), *_problems(batch)]))
    if not as_json:
        say(_summary(batch))


def _summary(batch: dict[str, Any]) -> str:
    total, answered, failed = _counts(batch)
    of = f": {answered} of {total} requests answered, {failed} failed" if total else ""
    return f"{batch['id']} is {batch['status'].replace('_', ' ')}{of}."


def _problems(batch: dict[str, Any]) -> list[str]:
    found = (batch["errors"] or {"data": []})["data"]
    return [
        (f"line {one['line']}: " if one["line"] else "") + f"{one['code']}: {one['message']}"
        for one in found
    ]


def _counts(batch: dict[str, Any]) -> tuple[int, int, int]:
    counts = batch["request_counts"]
    return counts["total"], counts["completed"], counts["failed"]


def _at(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
