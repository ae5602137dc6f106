"""All commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from lorikeet import (
    __version__,
    adapters,
    batches,
    chat,
    keys,
    loop,
    routes,
    splits,
    training,
    usage,
)
from lorikeet.api import Api, connected
from lorikeet.connection import Connection, address, save
from lorikeet.output import AsJson, say, show, show_json

app = typer.Typer(
    help="Push, promote and call LoRA adapters on Lorikeet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(adapters.app, name="adapters")
app.add_typer(batches.app, name="batches")
app.add_typer(keys.app, name="keys")
app.add_typer(splits.app, name="splits")
app.add_typer(routes.app, name="routes")
app.command("usage")(usage.usage)
app.command("chat")(chat.chat)
app.command("train")(training.train)
app.command("loop")(loop.loop)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lorikeet {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass


@app.command()
def login(
    url: Annotated[str, typer.Option(prompt="URL of the console", help="URL of the console.")],
    key: Annotated[
        str,
        typer.Option(prompt="API key", hide_input=True, help="API key; prompted for by default."),
    ],
    api_url: Annotated[
        str, typer.Option(help="URL of the API; by default as reported by the console.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Store the server's URL and a key in a file that only you can read."""
    where = Connection(address(url.strip()), address(api_url) if api_url else "", key.strip())
    api = Api(where)
    with api.http:
        who = api.whoami()
        file = save(replace(where, api_url=api.api_url))
    if as_json:
        show_json({"tenant": who["name"], "scopes": who["lorikeet"]["scopes"], "file": str(file)})
    else:
        say(f"Signed in to {who['name']}. The key is stored in {file}.")


@app.command()
def whoami(as_json: AsJson = False) -> None:
    """Show the key's tenant and permissions."""
    with connected() as api:
        who = api.whoami()
        facts = {
            "tenant": who["name"],
            "name": who["fullname"],
            "key": who["auth"]["accessToken"]["displayName"],
            "scopes": who["lorikeet"]["scopes"],
            "url": api.where.url,
            "api_url": api.api_url,
        }
    show(facts, as_json=as_json, columns=["", ""], rows=facts.items())


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the available models: base models, and adapters with a live version."""
    with connected() as api:
        found = api.infer("GET", "models")["data"]
    show(
        found,
        as_json=as_json,
        columns=["Model", "Owner"],
        rows=[(model["id"], model["owned_by"]) for model in found],
    )
