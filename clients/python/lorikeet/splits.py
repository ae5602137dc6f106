"""`lorikeet splits`: send a share of an alias's requests to another version, and compare them."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from lorikeet.adapters import Name
from lorikeet.api import connected, segment
from lorikeet.failures import Failure
from lorikeet.output import AsJson, say, show, show_json

app = typer.Typer(
    help="Split an alias between its version and a candidate, which is promoted or rolled back.",
    no_args_is_help=True,
)

AliasName = Annotated[str, typer.Option("--alias", help="The alias that is split.")]
KINDS = ("errors", "cuts", "slow", "structure")
GUARD = re.compile(r"([a-z0-9_.:-]+)=([0-9.]+)(?:@([0-9.]+))?")


@app.command()
def start(
    name: Name,
    version: Annotated[int, typer.Argument(help="Number of the candidate.")],
    alias: AliasName = "live",
    weights: Annotated[
        str, typer.Option(help="Percent of the keys that get the candidate, step by step.")
    ] = "5,25,50",
    sticky: Annotated[
        str,
        typer.Option(
            help="What requests that get the same version have in common: user, "
            "safety_identifier, conversation, request, or header:NAME."
        ),
    ] = "user",
    guards: Annotated[
        list[str] | None,
        typer.Option(
            "--guard",
            metavar="KIND=PERCENT",
            help="How much worse the candidate may be: errors=2, cuts=2, slow=2@1.5 (first tokens "
            "after 1.5 s), or the name of a score from 0 to 1; repeatable.",
        ),
    ] = None,
    min_requests: Annotated[
        int, typer.Option(help="Requests of the candidate before the next step.")
    ] = 100,
    promote: Annotated[
        bool, typer.Option("--promote", help="Promote by itself when all guards have passed.")
    ] = False,
    roll_back: Annotated[bool, typer.Option(help="Roll back by itself when a guard fails.")] = True,
    shadow_key: Annotated[
        int | None,
        typer.Option(
            help="Id of a key: the candidate gets copies of requests, which are billed to it and "
            "whose answers nobody sees."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a split: a share of the alias's requests gets the candidate."""
    kind, _, header = sticky.partition(":")
    plan = {
        "version": version,
        "weights": _weights(weights),
        "sticky": kind,
        "header": header,
        "guards": [_guard(one) for one in guards or ["errors=2"]],
        "min_requests": min_requests,
        "promotes": promote,
        "rolls_back": roll_back,
        "shadow_key": shadow_key,
    }
    with connected() as api:
        split = api("POST", _path(name, alias), json=plan)
    _tell(split, as_json=as_json)


@app.command("show")
def show_(name: Name, alias: AliasName = "live", as_json: AsJson = False) -> None:
    """Show the split of an alias with the figures of its guards."""
    with connected() as api:
        split = api("GET", _path(name, alias))
    if as_json:
        return show_json(split)
    _tell(split)
    show(
        split["figures"]["guards"],
        as_json=False,
        columns=["Guard", f"Version {split['stable']}", f"Version {split['candidate']}",
                 "Worse by", "Interval", "Verdict"],
        rows=[
            (one["label"], _arm(one["stable"]), _arm(one["candidate"]), f"{one['difference']:+.3f}",
             f"{one['low']:+.3f} to {one['high']:+.3f}", one["verdict"])
            for one in split["figures"]["guards"]
        ],
    )  # fmt: skip


@app.command()
def weight(
    name: Name,
    percent: Annotated[int, typer.Argument(help="Percent of the keys, 0 to 99.")],
    alias: AliasName = "live",
    as_json: AsJson = False,
) -> None:
    """Set the weight."""
    with connected() as api:
        split = api("PUT", f"{_path(name, alias)}/weight", json={"weight": percent})
    _tell(split, as_json=as_json)


@app.command()
def pause(name: Name, alias: AliasName = "live", as_json: AsJson = False) -> None:
    """Keep the weight, and decide nothing."""
    _act("pause", name, alias, as_json=as_json)


@app.command()
def resume(name: Name, alias: AliasName = "live", as_json: AsJson = False) -> None:
    """Decide again."""
    _act("resume", name, alias, as_json=as_json)


@app.command()
def promote(name: Name, alias: AliasName = "live", as_json: AsJson = False) -> None:
    """Point the alias at the candidate, and end the split."""
    _act("promote", name, alias, as_json=as_json)


@app.command()
def stop(name: Name, alias: AliasName = "live", as_json: AsJson = False) -> None:
    """End the split: the alias's version gets all requests again."""
    _act("stop", name, alias, as_json=as_json)


@app.command()
def evaluate(name: Name, alias: AliasName = "live", as_json: AsJson = False) -> None:
    """Run the eval that the alias requires on the candidate."""
    _act("evaluate", name, alias, as_json=as_json)


def _act(what: str, name: str, alias: str, *, as_json: bool) -> None:
    with connected() as api:
        split = api("POST", f"{_path(name, alias)}/{what}")
    _tell(split, as_json=as_json)


def _path(name: str, alias: str) -> str:
    return f"adapters/{segment(name)}/aliases/{segment(alias)}/split"


def _weights(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise Failure(f"`{text}` is not a list of percentages such as 5,25,50.") from None


def _guard(text: str) -> dict[str, Any]:
    form = GUARD.fullmatch(text)
    try:
        if form is None:
            raise ValueError
        guard: dict[str, Any] = {"kind": form[1], "margin": float(form[2]) / 100}
        if form[1] not in KINDS:
            guard |= {"kind": "score", "name": form[1]}
        return guard if form[3] is None else guard | {"seconds": float(form[3])}
    except ValueError:
        raise Failure(f"`{text}` is not a guard such as errors=2 or slow=2@1.5.") from None


def _tell(split: dict[str, Any], *, as_json: bool = False) -> None:
    if as_json:
        return show_json(split)
    requests = " and ".join(f"{count:,}" for count in split["figures"]["requests"])
    stable, candidate, weight = (split[name] for name in ("stable", "candidate", "weight"))
    if split["shadow_key"] is None:
        shares = f"version {candidate} gets {weight}%, version {stable} the rest"
    else:
        shares = f"version {stable} gets all, version {candidate} copies of {weight}%"
    say(
        f"{split['adapter']}@{split['alias']}: {shares}. {split['state']}. "
        f"{split['reason']}".rstrip()
    )
    if run := split.get("eval_run"):
        say(f"Required eval: {run['status']} ({run['id']}).")
    say(f"Requests of version {split['stable']} and {split['candidate']}: {requests}.")


def _arm(arm: dict[str, Any]) -> str:
    mean = "none" if arm["mean"] is None else f"{arm['mean']:.3f}"
    return f"{mean} of {arm['requests']:,}"
