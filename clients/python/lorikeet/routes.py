"""`lorikeet routes`: let the cheapest of several models answer that is good enough."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lorikeet.api import connected, segment
from lorikeet.output import AsJson, say, show, show_json

app = typer.Typer(
    help="Names under which the cheapest of several models answers that is good enough.",
    no_args_is_help=True,
)

RouteName = Annotated[str, typer.Argument(help="The route's name.")]


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the routes."""
    with connected() as api:
        routes = api("GET", "routes")["results"]
    show(
        routes,
        as_json=as_json,
        columns=["Name", "State", "Models", "Why"],
        rows=[
            (one["name"], _state(one), ", ".join(one["options"]), one["reason"]) for one in routes
        ],
    )


@app.command()
def create(
    name: RouteName,
    options: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="2 to 4 models, from the cheapest on."),
    ],
    margin: Annotated[
        float, typer.Option(help="Points that the share of good answers may be smaller, 0 to 20.")
    ] = 3.0,
    cascade: Annotated[
        bool, typer.Option(help="Ask the second of two models if the first one is unsure.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a route. Its last model answers until it is fitted."""
    plan: dict[str, Any] = {"name": name, "options": options, "margin": margin / 100}
    plan |= {"method": "cascade"} if cascade else {}
    _do("POST", "routes", as_json=as_json, json=plan)


@app.command("show")
def show_(name: RouteName, as_json: AsJson = False) -> None:
    """Show a route with what its last fit gained."""
    with connected() as api:
        route = api("GET", f"routes/{segment(name)}")
    if as_json:
        return show_json(route)
    _tell(route)
    if (report := route["report"]) is None:
        return
    control = report["control_quality"], report["control_cost"]
    show(
        report,
        as_json=False,
        columns=["Answered by", "Passed", "Cost of a row", "Share"],
        rows=[
            *(
                (f"{one['model']} alone", _percent(one["quality"]), one["cost"],
                 _percent(one["share"]))
                for one in report["options"]
            ),
            ("the route", _percent(report["quality"]), report["cost"], ""),
            ("the same shares at random", _percent(control[0]), control[1], ""),
        ],
    )  # fmt: skip
    say(
        f"Fitted on {report['training_rows']:,} rows, and tried on {report['held_out_rows']:,} "
        f"others. {_difference(report, 'quality_difference', 'the best model alone')} "
        f"{_difference(report, 'control_difference', 'the same shares at random')}"
    )


@app.command()
def fit(
    name: RouteName,
    eval: Annotated[
        str, typer.Argument(help="Id of an eval of which each model has a completed run.")
    ],
    as_json: AsJson = False,
) -> None:
    """Fit the route, in the background: it is turned on if it gains."""
    _do("POST", f"routes/{segment(name)}/fit", as_json=as_json, json={"eval": eval})


@app.command()
def on(name: RouteName, as_json: AsJson = False) -> None:
    """Let the route choose by its last fit, if that gains."""
    _do("POST", f"routes/{segment(name)}/on", as_json=as_json)


@app.command()
def off(name: RouteName, as_json: AsJson = False) -> None:
    """Have the best single model answer all requests."""
    _do("POST", f"routes/{segment(name)}/off", as_json=as_json)


@app.command()
def delete(name: RouteName) -> None:
    """Delete the route: requests that name it are refused."""
    with connected() as api:
        api("DELETE", f"routes/{segment(name)}")
    say(f"{name} is deleted.")


def _do(method: str, path: str, *, as_json: bool, **body: Any) -> None:
    with connected() as api:
        route = api(method, path, **body)
    if as_json:
        return show_json(route)
    _tell(route)


def _tell(route: dict[str, Any]) -> None:
    text = f"{route['name']} is {_state(route)}. {route['reason']}".rstrip()
    say(text if route["is_on"] else f"{text} {route['answers_if_off']} answers all requests.")


def _state(route: dict[str, Any]) -> str:
    state = "on" if route["is_on"] else "off"
    return f"{state}, being fitted" if route["is_being_fitted"] else state


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _difference(report: dict[str, Any], name: str, to: str) -> str:
    value, low, high = (100 * report[name][part] for part in ("value", "low", "high"))
    return f"Passed compared with {to}: {value:+.1f} points ({low:+.1f} to {high:+.1f})."
