"""`manage.py engine_credential`: create and revoke the credentials of engines."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from tenants.errors import Refused
from tenants.models import EngineCredential


class Command(BaseCommand):
    help = (
        "Create, list, rotate and revoke the credentials of engines. A new credential is "
        "printed only once. It is the value of LORIKEET_ENGINE_CREDENTIAL of one engine."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True)
        make = commands.add_parser("make", help="create a credential and print it")
        make.add_argument("name", help="for example the machine that the engine runs on")
        make.add_argument(
            "--pool",
            action="append",
            metavar="BASE_MODEL",
            help="base model that the engine may serve; repeatable; by default all",
        )
        commands.add_parser("list", help="list the valid credentials")
        rotate = commands.add_parser(
            "rotate",
            help="replace the secret and print the new one; the old one stops working at once",
        )
        rotate.add_argument("name")
        revoke = commands.add_parser(
            "revoke", help="revoke the credential permanently and disconnect its engine"
        )
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
            last_seen = (
                one.last_seen_at.isoformat(timespec="seconds") if one.last_seen_at else "never"
            )
            self.stdout.write(f"{one.name}\tle_{one.prefix}\t{pools}\t{last_seen}")

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
