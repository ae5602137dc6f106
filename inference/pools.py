"""Which revisions of a pool may run a request, and which of them should. No IO, no clock.

A revision is a kind of engine, named by `ModelInfo.pool_digest`: weights, version and profile.

Rules
    1. Tenants are served by the revisions that *serve*. During a rollout, tenants move from these
       to its revision. Which tenants have moved at a weight is deterministic, because each has a
       number that is hashed from its name and the rollout: a tenant that moved at a low weight
       stays moved at a higher one. Some move *first*, whatever the weight; some *last*, when the
       rollout is finished.
    2. A tenant moves as a whole, and only once each of its live adapters was tried on the new
       revision and passed. An adapter never runs on a revision on which it was not tried.
    3. If no engine of a request's revision is connected, the others take over: those that serve,
       then that of the rollout, then those that *wait* for one. Withdrawn revisions never do.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

PARTS = 10_000
"""Weights have a resolution of 0.01 %: 1 % of ten thousand tenants is a hundred of them."""

Revisions = frozenset[str]
NONE: Revisions = frozenset()


@dataclass(frozen=True, slots=True)
class PoolRollout:
    """Moves tenants to the revision `to`. `weight` is their share in percent; `first` and `last`
    are tenants by name."""

    id: int
    to: str
    weight: int
    first: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()

    def takes(self, tenant: str) -> bool:
        """Whether the rollout has reached this tenant."""
        if tenant in self.first or tenant in self.last:
            return tenant in self.first
        return draw(self.id, tenant) < self.weight * PARTS // 100


def draw(rollout_id: int, tenant: str) -> int:
    """The tenant's number in a rollout, below PARTS: it moves once the weight exceeds it."""
    name = f"{rollout_id}\0{tenant}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little") % PARTS


@dataclass(frozen=True, slots=True)
class Pool:
    """The revisions of one base model."""

    serving: Revisions
    waiting: Revisions = NONE
    rollout: PoolRollout | None = None

    def tiers(
        self, tenant: str, tried: Revisions | None = None, ready: Revisions | None = None
    ) -> tuple[Revisions, ...]:
        """The revisions that may run a request of this tenant, in tiers: those of a tier only if no
        engine of an earlier tier is connected.

        `tried` are the revisions on which the request's adapter passed, None if it has none;
        `ready` those on which all live adapters of the tenant passed, None if it has none.
        """
        rollout = self.rollout
        order: tuple[Revisions, ...]
        if rollout is None:
            order = (self.serving, self.waiting)
        else:
            new = frozenset([rollout.to])
            moved = rollout.takes(tenant) and (ready is None or rollout.to in ready)
            old = self.serving - new
            order = (*((new, old) if moved else (old, new)), self.waiting - new)
        if tried is not None:
            order = tuple(tier & tried for tier in order)
        return tuple(tier for tier in order if tier)
