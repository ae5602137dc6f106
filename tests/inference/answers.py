"""`inference.grants.Answers` in memory: passes the contract tests of the one in PostgreSQL."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from inference.errors import IdempotencyKeyReused, Unavailable
from inference.grants import Claim, KeptAnswer

CLAIM_S = 15.0
GIVEN_BACK_S = 6.0
KEPT_S = 24 * 3600.0


@dataclass
class Row:
    """One idempotency key; times are in seconds on the clock of `MemoryAnswers`."""

    claim: Claim
    claimed_until: float
    created_at: float
    answer: KeptAnswer | None = None


class MemoryResponses:
    """StoredResponses in memory; while they are `away`, nobody gets at them."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], bytes] = {}
        self.away = False

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        self._look()
        self.rows[tenant_id, id] = record
        return True

    async def read(self, tenant_id: int, id: str) -> bytes | None:
        self._look()
        return self.rows.get((tenant_id, id))

    async def delete(self, tenant_id: int, id: str) -> bool:
        self._look()
        return self.rows.pop((tenant_id, id), None) is not None

    def _look(self) -> None:
        if self.away:
            raise Unavailable("Away.")


class MemoryAnswers:
    """Time passes only when `now` is set; `away` is a database that does not answer."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], Row] = {}
        self.now = 0.0
        self.away = False
        self.asked = 0
        """Calls of any method."""
        self.renewals: list[set[str]] = []
        """The names that each `renew` was called with."""

    async def claim(self, claim: Claim) -> KeptAnswer | bool:
        await self._ask()
        row = self._row(claim)
        if row is None or self._over(row):
            row = Row(claim, self.now + CLAIM_S, self.now)
            self.rows[claim.key_id, claim.name] = row
            return True
        if row.claim.digest != claim.digest:
            raise IdempotencyKeyReused
        return row.answer or False

    async def take_over(self, claim: Claim, turns: Mapping[str, int]) -> Claim | None:
        await self._ask()
        row = self._row(claim)
        if row is None or row.answer is not None or row.claim.digest != claim.digest:
            return None
        turn = turns.get(row.claim.request_id, math.inf)
        if turn != row.claim.turn and not (turn < row.claim.turn and self._over(row)):
            return None
        row.claim = replace(row.claim, turn=row.claim.turn + 1)
        row.claimed_until = self.now + CLAIM_S
        return row.claim

    async def give_back(self, claim: Claim) -> None:
        await self._ask()
        row = self._own(claim)
        if row is not None and row.answer is None:
            row.claim = replace(claim, turn=claim.turn - 1)
            row.claimed_until = self.now + GIVEN_BACK_S

    async def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        await self._ask()
        ahead = []
        for claim in claims:
            row = self._row(claim)
            if (own := self._own(claim)) is not None and own.answer is None:
                own.claimed_until = self.now + CLAIM_S
            elif row is not None and row.claim.request_id == claim.request_id:
                if row.claim.turn > claim.turn:
                    ahead.append(claim)
        self.renewals.append({claim.name for claim in claims})
        return ahead

    async def keep(self, claim: Claim, answer: KeptAnswer) -> bool:
        await self._ask()
        if (row := self._own(claim)) is not None:
            row.answer = answer
        return row is not None

    async def release(self, claim: Claim) -> None:
        await self._ask()
        if (row := self._own(claim)) is not None and row.answer is None:
            del self.rows[claim.key_id, claim.name]

    async def _ask(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)  # others get their turn, as with a database
        if self.away:
            raise Unavailable(retry_after_s=1.0)

    def _row(self, claim: Claim) -> Row | None:
        return self.rows.get((claim.key_id, claim.name))

    def _own(self, claim: Claim) -> Row | None:
        row = self._row(claim)
        return row if row is not None and row.claim == claim else None

    def _over(self, row: Row) -> bool:
        ran_out = row.answer is None and row.claimed_until <= self.now
        return ran_out or row.created_at <= self.now - KEPT_S
