"""Answers of idempotency keys in PostgreSQL: `interfaces.answers.Answers`.

Each method is one statement, so calls from two gateways at once are serialized by the row lock.
A claim is identified by `request_id` and `turn` alone: a gateway that hung keeps its expired claim
until another one takes it. A gateway that starts a new request claims under another id; one that
continues the same request, which an engine still runs, claims a higher turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from inference.errors import IdempotencyKeyReused
from inference.interfaces.answers import Claim, KeptAnswer
from tenants.database import ANSWER_S, Database

CLAIM_TIME = timedelta(seconds=15)
"""Lifetime of a claim that is not renewed: the longest that a retry waits when the gateway of the
first request was killed."""
GIVEN_BACK_TIME = timedelta(seconds=6)
"""Lifetime of a claim whose takeover failed: longer than the time between two renewals."""
KEPT_TIME = timedelta(hours=24)

CLAIM = """
WITH won AS (
    INSERT INTO tenants_idempotentanswer AS held (key_id, name, body_digest, request_id,
                                                  turn, claimed_until, content_type, created_at)
    VALUES (%(key_id)s, %(name)s, %(digest)s, %(request_id)s, 1, now() + %(claim_time)s, '',
            now())
    ON CONFLICT (key_id, name) DO UPDATE
    SET body_digest = excluded.body_digest, request_id = excluded.request_id, turn = 1,
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
TAKE_OVER = """
UPDATE tenants_idempotentanswer AS held
SET turn = held.turn + 1, claimed_until = now() + %s
FROM unnest(%s::text[], %s::int[]) AS running (request_id, turn)
WHERE held.key_id = %s AND held.name = %s AND held.body_digest = %s AND held.answer IS NULL
  AND held.request_id = running.request_id
  AND (held.turn = running.turn OR (held.turn > running.turn AND held.claimed_until <= now()))
RETURNING held.request_id, held.turn
"""
GIVE_BACK = """
UPDATE tenants_idempotentanswer SET turn = turn - 1, claimed_until = now() + %s
WHERE key_id = %s AND name = %s AND request_id = %s AND turn = %s AND answer IS NULL
"""
RENEW = """
WITH mine AS (
    SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::int[])
        AS mine (key_id, name, request_id, turn)
), renewed AS (
    UPDATE tenants_idempotentanswer AS held SET claimed_until = now() + %s
    FROM mine
    WHERE held.key_id = mine.key_id AND held.name = mine.name
      AND held.request_id = mine.request_id AND held.turn = mine.turn AND held.answer IS NULL
)
SELECT mine.request_id, mine.turn FROM mine JOIN tenants_idempotentanswer AS held
    USING (key_id, name, request_id)
WHERE held.turn > mine.turn
"""
KEEP = """
UPDATE tenants_idempotentanswer SET content_type = %s, answer = %s
WHERE key_id = %s AND name = %s AND request_id = %s AND turn = %s
"""
RELEASE = """
DELETE FROM tenants_idempotentanswer
WHERE key_id = %s AND name = %s AND request_id = %s AND turn = %s AND answer IS NULL
"""


@dataclass(frozen=True, slots=True)
class _Found:
    won: bool
    same: bool
    request_id: str
    content_type: str
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class _Turn:
    request_id: str
    turn: int


class PostgresAnswers:
    """Use as an async context manager; it holds a few database connections while it is open."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        """`answer_s` bounds each statement, including the wait for a connection."""
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
        """The kept answer, or whether the claim is won; see `interfaces.answers.Answers`."""
        values = {
            "key_id": claim.key_id,
            "name": claim.name,
            "digest": claim.digest,
            "request_id": claim.request_id,
            "claim_time": CLAIM_TIME,
            "kept_time": KEPT_TIME,
        }
        rows = await self._pool.rows(_Found, CLAIM, values, binary=True)
        if not rows:  # it was taken or ended after this statement's snapshot
            return False
        (found,) = rows
        if not found.same:
            raise IdempotencyKeyReused
        if found.answer is None:
            return found.won
        return KeptAnswer(found.request_id, found.content_type, found.answer)

    async def take_over(self, claim: Claim, turns: Mapping[str, int]) -> Claim | None:
        """The claim in its next turn, if its request is in `turns`, else None; see
        `interfaces.answers.Answers`."""
        place = [claim.key_id, claim.name, claim.digest]
        values = [CLAIM_TIME, list(turns), list(turns.values()), *place]
        rows = await self._pool.rows(_Turn, TAKE_OVER, values)
        for row in rows:
            return replace(claim, request_id=row.request_id, turn=row.turn)
        return None

    async def give_back(self, claim: Claim) -> None:
        """Undo a `take_over`; see `interfaces.answers.Answers`."""
        await self._pool.execute(GIVE_BACK, [GIVEN_BACK_TIME, *_place(claim)])

    async def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Extend the claims to `CLAIM_TIME` from now; returns those that are in a higher turn."""
        places = [list(each) for each in zip(*map(_place, claims), strict=True)]
        rows = await self._pool.rows(_Turn, RENEW, [*places, CLAIM_TIME])
        ahead = {(row.request_id, row.turn) for row in rows}
        return [claim for claim in claims if (claim.request_id, claim.turn) in ahead]

    async def keep(self, claim: Claim, answer: KeptAnswer) -> bool:
        """End the claim with its answer; returns False if it was taken over."""
        values = [answer.content_type, answer.body, *_place(claim)]
        return await self._pool.execute(KEEP, values) == 1

    async def release(self, claim: Claim) -> None:
        """End the claim without an answer."""
        await self._pool.execute(RELEASE, _place(claim))


def _place(claim: Claim) -> tuple[int, str, str, int]:
    """The columns by which the statements find a claim."""
    return claim.key_id, claim.name, claim.request_id, claim.turn
