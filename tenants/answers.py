"""Answers of idempotency keys in PostgreSQL: `inference.grants.Answers`.

Each method is one statement, so two gateways that ask at once are put in order by the row's lock.
Only `request_id` says whose a claim is: one that ran out while its gateway hung is still its own
until somebody takes it over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from inference.errors import IdempotencyKeyReused
from inference.grants import Claim, KeptAnswer
from tenants.database import ANSWER_S, Database

CLAIM_TIME = timedelta(seconds=15)
"""Without a renewal; what a retry waits at most when the first one's gateway was killed."""
KEPT_TIME = timedelta(hours=24)

CLAIM = """
WITH won AS (
    INSERT INTO tenants_idempotentanswer AS held (key_id, name, body_digest, request_id,
                                                  claimed_until, content_type, created_at)
    VALUES (%(key_id)s, %(name)s, %(digest)s, %(request_id)s, now() + %(claim_time)s, '', now())
    ON CONFLICT (key_id, name) DO UPDATE
    SET body_digest = excluded.body_digest, request_id = excluded.request_id,
        claimed_until = excluded.claimed_until, created_at = excluded.created_at,
        content_type = '', answer = NULL
    WHERE (held.answer IS NULL AND held.claimed_until <= now())
       OR held.created_at <= now() - %(kept_time)s
    RETURNING request_id
)
SELECT true AS won, true AS same, request_id, '' AS content_type, NULL AS answer FROM won
UNION ALL
SELECT false, body_digest = %(digest)s, request_id, content_type,
       CASE WHEN body_digest = %(digest)s THEN answer END
FROM tenants_idempotentanswer
WHERE key_id = %(key_id)s AND name = %(name)s AND created_at > now() - %(kept_time)s
  AND (answer IS NOT NULL OR claimed_until > now()) AND NOT EXISTS (SELECT FROM won)
"""
RENEW = """
UPDATE tenants_idempotentanswer AS held SET claimed_until = now() + %s
FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS mine (key_id, name, request_id)
WHERE held.key_id = mine.key_id AND held.name = mine.name AND held.request_id = mine.request_id
  AND held.answer IS NULL
"""
KEEP = """
UPDATE tenants_idempotentanswer SET content_type = %s, answer = %s
WHERE key_id = %s AND name = %s AND request_id = %s
"""
RELEASE = """
DELETE FROM tenants_idempotentanswer
WHERE key_id = %s AND name = %s AND request_id = %s AND answer IS NULL
"""


@dataclass(frozen=True, slots=True)
class _Found:
    won: bool
    same: bool
    request_id: str
    content_type: str
    answer: bytes | None


class PostgresAnswers:
    """Use as an async context manager: it has a few connections of its own meanwhile."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        """`answer_s` bounds each statement, the wait for a connection included."""
        self._pool = Database("answers", answer_s)

    async def __aenter__(self) -> PostgresAnswers:
        """Connect.

        Raises:
            psycopg.OperationalError: the database cannot be reached.
        """
        await self._pool.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    async def claim(self, claim: Claim) -> KeptAnswer | bool:
        """The kept answer, or whether the claim is won; see `inference.grants.Answers`."""
        values = {
            "key_id": claim.key_id,
            "name": claim.name,
            "digest": claim.digest,
            "request_id": claim.request_id,
            "claim_time": CLAIM_TIME,
            "kept_time": KEPT_TIME,
        }
        rows = await self._pool.rows(_Found, CLAIM, values, binary=True)
        if not rows:  # somebody took it or ended it after this statement's snapshot
            return False
        (found,) = rows
        if not found.same:
            raise IdempotencyKeyReused
        if found.answer is None:
            return found.won
        return KeptAnswer(found.request_id, found.content_type, found.answer)

    async def renew(self, claims: Sequence[Claim]) -> None:
        """Hold these for `CLAIM_TIME` from now."""
        keys, names, requests = zip(*map(_place, claims), strict=True)
        await self._pool.execute(RENEW, [CLAIM_TIME, list(keys), list(names), list(requests)])

    async def keep(self, claim: Claim, answer: KeptAnswer) -> bool:
        """End the claim with its answer; False: it was taken over."""
        values = [answer.content_type, answer.body, *_place(claim)]
        return await self._pool.execute(KEEP, values) == 1

    async def release(self, claim: Claim) -> None:
        """End the claim without an answer."""
        await self._pool.execute(RELEASE, _place(claim))


def _place(claim: Claim) -> tuple[int, str, str]:
    """What the statements know a claim by."""
    return claim.key_id, claim.name, claim.request_id
