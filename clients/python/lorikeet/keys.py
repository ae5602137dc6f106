"""`lorikeet keys`: list, create and revoke keys; needs a key with the scope `admin`."""

from __future__ import annotations

from typing import Annotated

import typer

from lorikeet.api import connected
from lorikeet.output import AsJson, moment, say, screen, show, show_json

app = typer.Typer(help="List, create and revoke API keys.", no_args_is_help=True)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the tenant's keys."""
    with connected() as api:
        found = api.all("keys")
    show(
        found,
        as_json=as_json,
        columns=["Id", "Name", "Key", "Scopes", "Last used", "Expires", "Revoked"],
        rows=[
            (one["id"], one["name"], f"lk_{one['prefix']}…", one["scopes"],
             *(moment(one[name]) for name in ("last_used_at", "expires_at", "revoked_at")))
            for one in found
        ],
    )  # fmt: skip


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the key, such as its purpose.")],
    scope: Annotated[
        list[str],
        typer.Option(
            help="Scope: inference, adapters:write, usage:read, scores:write or admin; repeatable."
        ),
    ] = ["inference"],  # noqa: B006  Typer copies it
    model: Annotated[
        list[str] | None,
        typer.Option(help="Model that the key may use; repeatable; by default all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key. It is printed only once."""
    with connected() as api:
        made = api("POST", "keys", json={"name": name, "scopes": scope, "models": model or None})
    if as_json:
        show_json(made)
    else:
        screen.print(made["secret"])
        say("Store the key now. It cannot be shown again.")


@app.command()
def revoke(
    id: Annotated[int, typer.Argument(help="Id of the key, as shown by `keys list`.")],
    as_json: AsJson = False,
) -> None:
    """Revoke a key permanently. Its running streams are ended."""
    with connected() as api:
        api("DELETE", f"keys/{id}")
    if as_json:
        show_json({"id": id, "revoked": True})
    else:
        say(f"Revoked the key {id}.")
