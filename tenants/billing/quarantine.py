"""Entries that are not billed, kept for an operator's decision (`tenants.billing.decisions`).

What an engine sends is not trusted here: the entry is kept as text, and the fields that are shown
beside it are truncated to what their columns hold. Each entry is kept once, however often it is
sent. At most MAX_OPEN undecided entries of an engine are acknowledged: the others stay in its
journal, so nothing is lost, and no engine can fill the database.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec

from inference.interfaces.ledger import Source
from inference.link.accounts import LedgerEntry
from inference.link.session import AttemptKey
from tenants.billing.lines import Connection

MAX_OPEN = 10_000
"""Undecided entries of one credential, approximately; a thousand of them take a megabyte."""
MAX_ENTRY_CHARS = 16 << 10
"""A longer entry is kept without its text: no gateway writes names that long."""
MAX_TOKENS = 10**12
MAX_ATTEMPT = 2**31
NOT_BILLABLE = "not_billable"
"""The reason given for entries that the ledger itself refused."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")

_KEEP = """
INSERT INTO tenants_quarantinedentry (credential_id, engine_id, journal, key, request_id, attempt,
                                      reason, detail, prompt_tokens, completion_tokens, entry)
SELECT given.* FROM unnest(
    %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[],
    %s::text[], %s::bigint[], %s::bigint[], %s::text[]
) AS given (credential_id, engine_id, journal, key, request_id, attempt, reason, detail,
            prompt_tokens, completion_tokens, entry)
WHERE (SELECT count(*) FROM tenants_quarantinedentry AS kept
       WHERE kept.status = 'open' AND kept.credential_id IS NOT DISTINCT FROM given.credential_id)
    < %s
ORDER BY given.credential_id, given.key
ON CONFLICT DO NOTHING
"""
_KEPT = "SELECT key FROM tenants_quarantinedentry WHERE key = ANY(%s)"


class SuspectEntry(NamedTuple):
    """An entry that is not to be billed, its sender, and the reason."""

    source: Source
    entry: LedgerEntry
    reason: str
    detail: str = ""

    @property
    def attempt(self) -> AttemptKey:
        return self.entry.id, self.entry.attempt


class QuarantineRow(NamedTuple):
    """A suspect, as it is kept."""

    credential_id: int | None
    engine_id: str
    journal: str
    key: str
    request_id: str
    attempt: int
    reason: str
    detail: str
    prompt_tokens: int
    completion_tokens: int
    entry: str

    @classmethod
    def of(cls, suspect: SuspectEntry) -> QuarantineRow:
        entry, source = suspect.entry, suspect.source
        content = f"{source.journal}\0{entry!r}".encode(errors="backslashreplace")
        return cls(
            source.credential or None,
            _shown(source.engine_id, 255),
            _shown(source.journal, 64),
            hashlib.sha256(content).hexdigest(),
            _shown(entry.id, 64),
            min(max(0, entry.attempt), MAX_ATTEMPT),
            suspect.reason,
            _shown(suspect.detail, 1000),
            min(max(0, entry.usage.prompt_tokens), MAX_TOKENS),
            min(max(0, entry.usage.completion_tokens), MAX_TOKENS),
            _text(entry),
        )


def _shown(text: str, most: int) -> str:
    return _UNPRINTABLE.sub("?", text[:most]).encode(errors="replace").decode()


def _text(entry: LedgerEntry) -> str:
    """The entry as JSON without characters that PostgreSQL does not accept; empty if it cannot be
    encoded or is too long."""
    try:
        text = msgspec.json.encode(entry).decode()
    except UnicodeEncodeError:
        return ""
    return text if len(text) <= MAX_ENTRY_CHARS else ""


async def keep(connection: Connection, suspects: Sequence[SuspectEntry]) -> Collection[AttemptKey]:
    """Keep the entries. Returns the attempts of those that are kept, including from earlier calls.

    Raises: as `statements.write`.
    """
    rows = [QuarantineRow.of(suspect) for suspect in suspects]
    await connection.execute(_KEEP, [*map(list, zip(*rows, strict=True)), MAX_OPEN])
    cursor = await connection.execute(_KEPT, [[row.key for row in rows]])
    kept = {key for (key,) in await cursor.fetchall()}
    pairs = zip(suspects, rows, strict=True)
    return {suspect.attempt for suspect, row in pairs if row.key in kept}
