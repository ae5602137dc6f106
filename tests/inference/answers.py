"""In-memory `interfaces.answers.Answers`, `StoredResponses`, `StoredConversations`. They pass the
contract tests of the PostgreSQL implementations."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from inference.errors import IdempotencyKeyReused, RateLimitExceeded, Unavailable
from inference.interfaces.answers import Claim, KeptAnswer
from inference.interfaces.stored import EndedResponse, Queued, ResponseStatus
from inference.operations.responses.framing import CANCELLED, LIVE, QUEUED

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


@dataclass
class Run:
    """A response that runs in the background."""

    queued: Queued
    status: str = QUEUED
    code: str = ""
    turn: int = 0


class MemoryResponses:
    """StoredResponses in memory. While `away` is set, every call raises `Unavailable`. A tenant has
    at most `most` live background responses."""

    def __init__(self, most: int = 3) -> None:
        self.rows: dict[tuple[int, str], bytes] = {}
        self.runs: dict[tuple[int, str], Run] = {}
        self.away = False
        self._most = most

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        self._look()
        self.rows[tenant_id, id] = record
        return True

    async def read(self, tenant_id: int, id: str) -> bytes | None:
        self._look()
        return self.rows.get((tenant_id, id))

    async def delete(self, tenant_id: int, id: str) -> bool:
        self._look()
        self.runs.pop((tenant_id, id), None)
        return self.rows.pop((tenant_id, id), None) is not None

    async def queue(self, queued: Queued) -> str | None:
        self._look()
        runs = [run for (tenant_id, _), run in self.runs.items() if tenant_id == queued.tenant_id]
        for run in runs:
            if queued.once and run.queued.once == queued.once:
                return run.queued.id
        if sum(run.status in LIVE for run in runs) >= self._most:
            raise RateLimitExceeded(f"at most {self._most} are allowed", retry_after_s=10.0)
        self.rows[queued.tenant_id, queued.id] = queued.record
        self.runs[queued.tenant_id, queued.id] = Run(queued)
        return queued.id

    async def status(self, tenant_id: int, id: str) -> ResponseStatus | None:
        self._look()
        run = self.runs.get((tenant_id, id))
        return None if run is None else ResponseStatus(run.status, run.code)

    async def begin(self, tenant_id: int, id: str, turn: int) -> bytes | None:
        self._look()
        run = self.runs.get((tenant_id, id))
        if run is None or run.status not in LIVE or turn < run.turn:
            return None
        run.turn = turn
        return self.rows[tenant_id, id]

    async def end(self, tenant_id: int, id: str, turn: int, ended: EndedResponse) -> bool:
        self._look()
        run = self.runs.get((tenant_id, id))
        if run is None or run.status not in LIVE or turn != run.turn:
            return False
        run.status, self.rows[tenant_id, id] = ended.status, ended.record
        return True

    async def cancel(self, tenant_id: int, id: str) -> None:
        self._look()
        run = self.runs.get((tenant_id, id))
        if run is not None and run.status in LIVE:
            run.status = CANCELLED

    def _look(self) -> None:
        if self.away:
            raise Unavailable("Away.")


class MemoryConversations:
    """StoredConversations in memory."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], tuple[bytes, bytes]] = {}
        self.raced: list[Callable[[], None]] = []
        """Each is called once before a `replace`, to race with it; the last one first."""
        self._versions = itertools.count()

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        self.rows[tenant_id, id] = record, b"%d" % next(self._versions)
        return True

    async def read(self, tenant_id: int, id: str) -> tuple[bytes, bytes] | None:
        return self.rows.get((tenant_id, id))

    async def replace(self, tenant_id: int, id: str, version: bytes, record: bytes) -> bool:
        if self.raced:
            self.raced.pop()()
        found = self.rows.get((tenant_id, id))
        if found is None or found[1] != version:
            return False
        return await self.keep(tenant_id, id, record)

    async def delete(self, tenant_id: int, id: str) -> bool:
        return self.rows.pop((tenant_id, id), None) is not None


class MemoryAnswers:
    """Answers in memory. Time passes only when `now` is set. While `away` is set, the database does
    not answer."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, str], Row] = {}
        self.now = 0.0
        self.away = False
        self.asked = 0
        """Number of calls of any method."""
        self.renewals: list[set[str]] = []
        """The names that each `renew` was called with."""
        self.broken = 0
        """How many of the next calls of `renew` raise RuntimeError, as a bug would."""

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
        if self.broken:
            self.broken -= 1
            raise RuntimeError("of no use")
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
        await asyncio.sleep(0)  # lets other tasks run, as a database call does
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
