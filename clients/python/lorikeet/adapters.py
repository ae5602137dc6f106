"""`lorikeet adapters`: push, list, promote, roll back, compare."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from lorikeet.api import Api, connected, segment
from lorikeet.failures import NotFound, Rejected
from lorikeet.output import AsJson, moment, notes, say, show, show_json, size
from lorikeet.retries import insisting
from lorikeet.transfer import hub
from lorikeet.transfer.archive import Archive
from lorikeet.transfer.uploads import Upload

app = typer.Typer(help="Push, list, promote, roll back and compare adapters.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the adapter.")]
AliasName = Annotated[str, typer.Option("--alias", help="The alias to move.")]
BaseModel = Annotated[
    str,
    typer.Option(
        "--base-model", help="Required for a new adapter if there are several base models."
    ),
]
Confirm = Annotated[
    bool,
    typer.Option(
        "--confirm-base-model",
        help="Confirm that adapter_config.json has another name for the same base model.",
    ),
]
Wait = Annotated[bool, typer.Option(help="Wait until the version has been checked and tested.")]
POLL_S = 1.0


@app.command("list")
def list_(
    name: Annotated[str, typer.Argument(help="Adapter whose versions to list.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the adapters, or the versions of one."""
    with connected() as api:
        if name:
            _show_versions(api.all(f"adapters/{segment(name)}/versions"), as_json=as_json)
        else:
            _show_adapters(api.all("adapters"), as_json=as_json)


def _show_adapters(found: Sequence[Any], *, as_json: bool) -> None:
    def pointing(adapter: Any) -> list[str]:
        return [f"{alias['name']} -> {alias['version']}" for alias in adapter["aliases"]]

    show(
        found,
        as_json=as_json,
        columns=["Adapter", "Base model", "Aliases"],
        rows=[(one["name"], one["base_model"], pointing(one)) for one in found],
    )


def _show_versions(found: Sequence[Any], *, as_json: bool) -> None:
    show(
        found,
        as_json=as_json,
        columns=["Version", "State", "Aliases", "Size", "Digest", "Created"],
        rows=[
            (one["number"], one["state"], one["aliases"], size(one["size_bytes"]),
             one["digest"][:12], moment(one["created_at"]))
            for one in found
        ],
    )  # fmt: skip


@app.command()
def push(
    source: Annotated[
        Path,
        typer.Argument(help="Folder of save_pretrained, or a .zip, .tar or .tar.gz of it."),
    ],
    name: Annotated[str, typer.Option(help="Name of the adapter; by default the folder's.")] = "",
    base_model: BaseModel = "",
    confirm_base_model: Confirm = False,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Push a new version of an adapter and show whether it passed its checks.

    An interrupted push resumes when the same files are pushed again.
    """
    archive = Archive(source)
    fields = _fields(base_model, confirm_base_model)
    with connected() as api:
        _push(api, archive, name or source.resolve().name.partition(".")[0], fields,
              wait=wait, as_json=as_json)  # fmt: skip


@app.command("pull-hub")
def pull_hub(
    pinned: Annotated[
        str,
        typer.Argument(
            metavar="REPO@COMMIT", help="Repository and commit, such as acme/support@<40 digits>."
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Name of the adapter; by default the repository's.")
    ] = "",
    base_model: BaseModel = "",
    confirm_base_model: Confirm = False,
    hub_url: Annotated[str, typer.Option("--hub", help="URL of the hub.")] = hub.HUGGING_FACE,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Download an adapter from a hub at a pinned commit and push it.

    HF_TOKEN is sent to the hub if it is a Hugging Face token (hf_...).
    """
    pin = hub.Pin.parse(pinned)
    fields = _fields(base_model, confirm_base_model)
    with connected() as api, TemporaryDirectory(prefix="lorikeet-") as made:
        folder = Path(made)
        hub.download(pin, hub_url.rstrip("/"), folder)
        _push(api, Archive(folder), name or pin.name, fields, wait=wait, as_json=as_json)


def _fields(base_model: str, confirmed: bool) -> dict[str, str]:
    fields = {"base_model": base_model} if base_model else {}
    return fields | ({"confirm_base_model": "true"} if confirmed else {})


def _push(
    api: Api, archive: Archive, name: str, fields: dict[str, str], *, wait: bool, as_json: bool
) -> None:
    with _bar() as bar:
        task = bar.add_task("", total=archive.size)
        upload = Upload(api, archive, name, fields)
        version = upload.send(lambda sent: bar.update(task, completed=sent))
    if wait:
        version = _judged(api, version)
    if as_json:
        show_json(version)
    if version["state"] == "rejected":
        raise Rejected(_findings(version))
    if not as_json:
        _tell(version)


def _bar() -> Progress:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=notes, disable=not notes.is_terminal)


def _judged(api: Api, version: dict[str, Any]) -> dict[str, Any]:
    """Wait until the version is ready or rejected; returns it."""
    path = f"adapters/{segment(version['adapter'])}/versions/{version['number']}"
    with notes.status("") as status:
        while version["state"] in ("uploading", "validating", "probing"):
            waiting = version["report"].get("waiting_for")
            status.update(version["state"] + (f": waiting for {waiting}" if waiting else ""))
            time.sleep(POLL_S)
            version = insisting(partial(api, "GET", path))
    return version


def _findings(version: dict[str, Any]) -> str:
    report = version["report"]
    lines = [f"{one['code']}: {one['message']}" for one in report.get("findings", [])]
    if omitted := report.get("findings_omitted"):
        lines.append(f"and {omitted} more")
    return "\n  ".join([f"{_title(version)} was rejected.", *lines])


def _tell(version: dict[str, Any]) -> None:
    say(f"{_title(version)} is {version['state']}.")
    probe = version["report"].get("probe") or {}
    if "max_logprob_delta" in probe:
        say(f"It changes log-probabilities by up to {probe['max_logprob_delta']:.3g}.")
    parity = version["report"].get("parity") or {}
    if "difference" in parity:
        say(f"They are PEFT's, within {parity['difference']:.2g}.")
    if version["aliases"]:
        say(
            "It serves the models "
            f"{', '.join(_model(version, alias) for alias in version['aliases'])}."
        )
    elif version["state"] == "ready":
        say(f"To promote it: lorikeet adapters promote {version['adapter']} {version['number']}")


def _title(version: dict[str, Any]) -> str:
    return f"{version['adapter']}@{version['number']}"


def _model(version: dict[str, Any], alias: str) -> str:
    name: str = version["adapter"]
    return name if alias == "live" else f"{name}@{alias}"


@app.command()
def promote(
    name: Name,
    version: Annotated[int, typer.Argument(help="Number of the version.")],
    alias: AliasName = "live",
    as_json: AsJson = False,
) -> None:
    """Point an alias at a version. Running requests finish on their present version."""
    with connected() as api:
        path = f"adapters/{segment(name)}/aliases/{segment(alias)}"
        moved = api("PUT", path, json={"version": version})
    _show_alias(name, moved, as_json=as_json)


@app.command("require-eval")
def require_eval(
    name: Name,
    eval: Annotated[
        str, typer.Argument(help="Id of the eval; without one, show what the aliases require.")
    ] = "",
    alias: AliasName = "live",
    min_pass_rate: Annotated[
        float, typer.Option(help="Share of rows that must pass, above 0 and at most 1.")
    ] = 0.9,
    remove: Annotated[bool, typer.Option("--remove", help="Require no eval any more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Promote a version to an alias only if it passed an eval."""
    path = f"adapters/{segment(name)}/aliases/{segment(alias)}/gate"
    with connected() as api:
        if remove:
            api("DELETE", path)
            return say(f"The alias {alias} of {name} requires no eval.")
        if eval:
            gates = [api("PUT", path, json={"eval": eval, "min_pass_rate": min_pass_rate})]
        else:
            gates = api("GET", f"adapters/{segment(name)}")["gates"]
    show(
        gates,
        as_json=as_json,
        columns=["Alias", "Eval", "Name", "Rows that pass"],
        rows=[
            (one["alias"], one["eval"], one["eval_name"], f"{100 * one['min_pass_rate']:g}%")
            for one in gates
        ],
    )


@app.command()
def rollback(name: Name, alias: AliasName = "live", as_json: AsJson = False) -> None:
    """Point an alias back at its previous version."""
    with connected() as api:
        moved = api("POST", f"adapters/{segment(name)}/aliases/{segment(alias)}/roll_back")
    _show_alias(name, moved, as_json=as_json)


def _show_alias(name: str, alias: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_json(alias)
        return
    before = f" (previously {alias['previous']})" if alias["previous"] else ""
    say(f"The alias {alias['name']} of {name} points at version {alias['version']}{before}.")


@app.command()
def diff(
    name: Name,
    old: Annotated[int, typer.Argument(help="Number of a version.")],
    new: Annotated[int, typer.Argument(help="Number of another version.")],
    as_json: AsJson = False,
) -> None:
    """Show how the configurations of two versions differ."""
    with connected() as api:
        path = f"adapters/{segment(name)}/versions"
        configs = [api("GET", f"{path}/{number}")["config"] for number in (old, new)]
    for number, config in zip((old, new), configs, strict=True):
        if not config:
            raise NotFound(
                f"{name}@{number} has no checked configuration because it did not pass its checks."
            )
    before, after = configs
    changed = [
        {"field": key, "old": before.get(key), "new": after.get(key)}
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    show(
        changed,
        as_json=as_json,
        columns=["Field", str(old), str(new)],
        rows=[(one["field"], one["old"], one["new"]) for one in changed],
    )
