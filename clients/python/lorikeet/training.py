"""`lorikeet train`: makes an adapter from a file of dialogues or preferences."""

from __future__ import annotations

import secrets
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn
from rich.progress import TimeRemainingColumn as TimeRemaining

from lorikeet.api import Api, connected, segment
from lorikeet.failures import Failure, Rejected
from lorikeet.output import AsJson, notes, say, show_json
from lorikeet.retries import insisting
from lorikeet.transfer.files import FileUpload, sent_with_bar

POLL_S = 2.0
ENDED = ("succeeded", "failed", "cancelled")


def train(
    file: Annotated[Path, typer.Argument(help="File with one row per line.")],
    model: Annotated[str, typer.Option(help="Base model; needed if the key may use several.")] = "",
    validation: Annotated[
        Path | None, typer.Option(help="File of rows that are not trained on.")
    ] = None,
    suffix: Annotated[str, typer.Option(help="Beginning of the adapter's name.")] = "",
    method: Annotated[str, typer.Option(help="`supervised` or `dpo`.")] = "supervised",
    epochs: Annotated[int | None, typer.Option(help="Number of epochs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until the job has ended.")] = False,
    as_json: AsJson = False,
) -> None:
    """Upload a file of rows and start a fine-tuning job of it.

    An interrupted upload resumes when the same file is sent again.
    """
    with connected() as api:
        uploads = [FileUpload(api, path, "fine-tune") for path in (file, validation) if path]
        wanted: dict[str, Any] = {
            "model": model or _only_base(api),
            "method": {"type": method, method: {"hyperparameters": _given(n_epochs=epochs)}},
            **_given(suffix=suffix or None, seed=seed),
        }
        names = ("training_file", "validation_file")
        for name, upload in zip(names, uploads, strict=False):
            wanted[name] = sent_with_bar(upload)
        job = _made(api, wanted)
        for upload in uploads:
            upload.forget()
        if wait:
            job = _ended(api, job)
    _conclude(job, as_json=as_json)


def _made(api: Api, wanted: dict[str, Any]) -> dict[str, Any]:
    """Create the job; once, even if an answer is lost."""
    headers = {"Idempotency-Key": secrets.token_hex(16)}
    made: dict[str, Any] = insisting(
        lambda: api.infer("POST", "fine_tuning/jobs", json=wanted, headers=headers)
    )
    return made


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _only_base(api: Api) -> str:
    """The base model, if the key may use one alone."""
    found = [one["id"] for one in api.infer("GET", "models")["data"] if one["id"] == one["root"]]
    if len(found) != 1:
        raise Failure(f"Set --model to one of: {', '.join(found) or 'none is served'}.")
    return str(found[0])


def _ended(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    """Wait until the job has ended, showing its progress; returns it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemaining())
    with Progress(*columns, console=notes, disable=not notes.is_terminal) as bar:
        task = bar.add_task(job["status"], total=None)
        while job["status"] not in ENDED:
            time.sleep(POLL_S)
            where = f"fine_tuning/jobs/{segment(job['id'])}"
            job = insisting(partial(api.infer, "GET", where))
            events = insisting(partial(api.infer, "GET", f"{where}/events", params={"limit": 1}))
            for event in events["data"]:
                data = event["data"] or {}
                bar.update(
                    task,
                    description=event["message"],
                    completed=data.get("step", 0),
                    total=data.get("total_steps"),
                )
    return job


def _conclude(job: dict[str, Any], *, as_json: bool) -> None:
    """Print the job's status.

    Raises:
        Rejected: it has ended without a model.
    """
    if as_json:
        show_json(job)
    text = f"{job['id']} is {job['status'].replace('_', ' ')}"
    if job["error"]:
        raise Rejected(f"{text}. {job['error']['code']}: {job['error']['message']}")
    if job["status"] == "cancelled":
        raise Rejected(f"{text}.")
    if not as_json:
        model = job["fine_tuned_model"]
        say(f"{text}: the model is {model}." if model else f"{text}.")
