"""An operator's decisions on quarantined entries: to bill them after all, or to dismiss them.

An entry is billed as a gateway would have billed it, in one transaction with the decision; the
audit log records who decided.
"""

from __future__ import annotations

import msgspec
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone

from inference.link.accounts import LedgerEntry
from tenants.billing.insertion import make_months
from tenants.billing.ledger import connect
from tenants.billing.lines import REFUSED, Connection, StatementLine
from tenants.billing.statements import write
from tenants.errors import AlreadyDecided, NotBillable
from tenants.models import QuarantinedEntry, User
from tenants.models.audit import Actor
from tenants.models.fleet.quarantine import Decision

_ACTING = "SELECT set_config('lorikeet.actor', %s, true)"
_TAKE = """
SELECT entry, engine_id, journal FROM tenants_quarantinedentry
WHERE id = %s AND status = 'open' FOR UPDATE
"""
_KNOWN = """
SELECT EXISTS (
    SELECT FROM tenants_usageevent
    WHERE id = %(id)s AND started_at = to_timestamp(%(at)s) AND attempt = %(attempt)s
) OR EXISTS (
    SELECT FROM tenants_supersededattempt
    WHERE request_id = %(id)s AND started_at = to_timestamp(%(at)s) AND attempt = %(attempt)s
)
"""
_BILLED = """
UPDATE tenants_quarantinedentry SET status = 'billed', decided_at = now(), decided_by_id = %s
WHERE id = %s
"""
IN_LEDGER = "This attempt of the request is already in the ledger. Dismiss the entry."


def reported_entry(entry: QuarantinedEntry) -> LedgerEntry | None:
    """The entry as the engine sent it; None if its text was not kept or cannot be decoded."""
    try:
        return msgspec.json.decode(entry.entry, type=LedgerEntry)
    except msgspec.MsgspecError:
        return None


def is_billable(entry: LedgerEntry) -> bool:
    """Whether the figures are possible for a request."""
    usage = entry.usage
    return 0 <= usage.cached_tokens <= usage.prompt_tokens and not any(
        number < 0 for number in (usage.completion_tokens, usage.reasoning_tokens)
    )


def dismiss(entry: QuarantinedEntry, by: User | None) -> None:
    """Bill it to nobody: the entry stays in quarantine and counts nowhere.

    Raises:
        AlreadyDecided: it was billed or dismissed before.
    """
    with transaction.atomic():
        here = QuarantinedEntry.objects.filter(pk=entry.pk, status=Decision.OPEN)
        decided = {"decided_at": timezone.now(), "decided_by": by}
        if not here.update(status=Decision.DISMISSED, **decided):
            raise AlreadyDecided


def bill(entry: QuarantinedEntry, by: User | None, actor: Actor | None) -> None:
    """Bill it after all, to the tenant and key that it names, at the price that it names.

    Raises:
        AlreadyDecided: it was billed or dismissed before.
        NotBillable: the ledger cannot take it, or has this attempt already.
    """
    async_to_sync(_bill)(entry.pk, by.pk if by else None, actor)


async def _bill(pk: int, by: int | None, actor: Actor | None) -> None:
    async with await connect() as connection, connection.transaction():
        text = "" if actor is None else msgspec.json.encode(actor).decode()
        await connection.execute(_ACTING, [text])
        await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # _write raises, not COMMIT
        row = await (await connection.execute(_TAKE, [pk])).fetchone()
        if row is None:
            raise AlreadyDecided
        try:
            await _write(connection, StatementLine(row[1], row[2], _decoded(row[0])))
        except REFUSED as error:
            raise NotBillable(f"The ledger cannot accept this entry: {error}") from None
        await connection.execute(_BILLED, [by, pk])


def _decoded(text: str) -> LedgerEntry:
    try:
        entry = msgspec.json.decode(text, type=LedgerEntry)
    except msgspec.MsgspecError:
        raise NotBillable from None
    if not is_billable(entry):
        raise NotBillable("The entry's figures are impossible. Dismiss the entry.")
    return entry


async def _write(connection: Connection, line: StatementLine) -> None:
    entry = line.entry
    names = {"id": entry.id, "at": entry.account.started_at, "attempt": entry.attempt}
    known = await (await connection.execute(_KNOWN, names)).fetchone()
    if known is not None and known[0]:
        raise NotBillable(IN_LEDGER)
    await make_months(connection, [line])  # a missing one would abort the transaction
    await write(connection, [line])
