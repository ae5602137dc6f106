"""`manage.py engine_credential`: create and revoke the credentials of engines."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants.errors import Refused
from tenants.models import EngineCredential


class Command(BaseCommand):
    help = (
        "Make, list, rotate and revoke the credentials of engines. A new one is printed this once: "
        "it is the ENGINE_CREDENTIAL of one engine."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        make = commands.add_parser("make", help="make a credential and print it")
        make.add_argument("name", help="such as the machine that it is for")
        make.add_argument(
            "--pool",
            action="append",
            metavar="BASE_MODEL",
            help="a base model that its engine may serve, again for each; all if none is given",
        )
        commands.add_parser("list", help="print the credentials that hold")
        rotate = commands.add_parser("rotate", help="print another secret; the old one ends now")
        rotate.add_argument("name")
        revoke = commands.add_parser("revoke", help="end it for good, and its engine's links")
        revoke.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        ways = {"make": self._make, "list": self._list, "rotate": self._rotate}
        try:
            ways.get(options["command"], self._revoke)(options)
        except Refused as refused:
            raise CommandError(refused.message) from None

    def _make(self, options: dict[str, Any]) -> None:
        name, pools = options["name"], options["pool"]
        self.stdout.write(EngineCredential.objects.issue(name=name, pools=pools)[1])

    def _list(self, options: dict[str, Any]) -> None:
        for one in EngineCredential.objects.live().order_by("name"):
            pools = "all" if one.pools is None else ",".join(one.pools)
            seen = one.last_seen_at.isoformat(timespec="seconds") if one.last_seen_at else "never"
            self.stdout.write(f"{one.name}\tle_{one.prefix}\t{pools}\t{seen}")

    def _rotate(self, options: dict[str, Any]) -> None:
        self.stdout.write(_named(options["name"]).rotate())

    def _revoke(self, options: dict[str, Any]) -> None:
        _named(options["name"]).revoke()
        self.stdout.write(f"Revoked: {options['name']}.")


def _named(name: str) -> EngineCredential:
    found = EngineCredential.objects.live().filter(name=name).first()
    if found is None:
        raise CommandError(f"there is no credential {name!r}.")
    return found
