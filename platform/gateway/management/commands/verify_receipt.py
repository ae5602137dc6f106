"""`manage.py verify_receipt`: verify receipts and compare them with the ledger."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from tenants.adapters.checks.strict_json import BadJson, load_object
from tenants.billing.money import amount
from tenants.billing.receipts import (
    InvalidPublicKey,
    InvalidReceipt,
    PublicKey,
    differences,
    signer,
    verify,
)
from tenants.models import UsageEvent
from tenants.offboarding import deletion


class Command(BaseCommand):
    help = (
        "Verify a receipt, or a list of them, as returned by /v1/usage/receipts; or the receipt "
        "of a tenant's deletion. The exit "
        "status is 0 if every signature is valid, no request occurs twice and the ledger "
        "agrees on those that it has; otherwise 1."
    )
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="file with the receipts as JSON; - for standard input")
        parser.add_argument(
            "--public-key",
            help=(
                "public key as PEM, 64 hexadecimal digits, a JWK or a JWK set, or a file "
                "with one of these; needed for receipts of another installation or of an "
                "earlier LORIKEET_RECEIPT_KEY (default: this installation's key)"
            ),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        keys = _public_keys(options["public_key"])
        sound, costs = True, dict[str, int]()
        read = _read(options["file"])
        for signed in read:
            try:
                if signed.get("object") == deletion.OBJECT:
                    self.stdout.write(_deletion(signed, keys))
                    continue
                receipt = verify(signed, keys)
            except InvalidReceipt as error:
                valid, words = False, f"INVALID: {error}"
            else:
                valid, words = _compared(receipt)
                if valid and receipt["id"] in costs:
                    valid, words = False, f"{words}; but it occurs TWICE"
                elif valid:
                    costs[receipt["id"]] = receipt["cost_pico"]
            self.stdout.write(words)
            sound &= valid
        if not sound:
            raise CommandError("Not all receipts are valid.", returncode=1)
        if len(read) != 1:
            self.stdout.write(f"{len(read)} receipts, {amount(sum(costs.values()))} in total")


def _deletion(signed: Mapping[str, Any], keys: list[PublicKey]) -> str:
    """The line to print. Raises InvalidReceipt."""
    fields = verify(signed, keys, type=deletion.TYPE, format=deletion.FORMAT)
    rows = sum(fields["deleted"].values())
    return (
        f"valid: deletion of the tenant {fields['tenant']} at {fields['ended_at']}, {rows:,} rows"
    )


def _compared(receipt: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the ledger agrees, if it has the request; and the line to print."""
    valid = f"valid: {receipt['id']}, {receipt['cost']} {receipt['currency']}"
    try:
        event = UsageEvent.objects.filter(id=receipt["id"].removeprefix("req_")).first()
    except DatabaseError:
        return True, f"{valid}; the ledger cannot be read"
    if event is None:
        return True, f"{valid}; not in this ledger"
    differing = differences(receipt, event)
    if differing:
        return False, f"{valid}; but DIFFERS from the ledger in {', '.join(differing)}"
    return True, f"{valid}; the ledger agrees"


def _public_keys(given: str | None) -> list[PublicKey]:
    if given is None:
        return [signer().public_key]
    try:
        path = Path(given)
        return PublicKey.parse(path.read_text() if "\n" not in given and path.is_file() else given)
    except (InvalidPublicKey, OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--public-key: {error}") from error


def _read(name: str) -> list[Mapping[str, Any]]:
    """The receipts of a file: one, or the `data` of a list."""
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        read = load_object(raw)
    except (OSError, BadJson) as error:
        raise CommandError(f"{name}: {error}") from error
    found = read.get("data") if read.get("object") == "list" else [read]
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise CommandError(f"{name}: it contains no receipts")
    return found
