"""Which revisions of a pool may run a request, and which of them should. No IO, no clock.

A revision is a kind of engine, named by `ModelInfo.pool_digest`: weights, version and profile.

Rules
    1. Tenants are served by the revisions that *serve*. While a rollout goes on, tenants move from
       these to its revision: the same tenant at the same weight always, for the number that it is
       drawn by comes from its name and the rollout. Who moved at a low weight stays moved at a
       higher one. Some go *first*, whatever the weight; some go *last*, when it is finished.
    2. A tenant moves as a whole, and not before each of its live adapters was tried on the new
       revision and passed. An adapter never goes where it was not.
    3. Where no engine of the revision is there, the others take over: those that serve, then that
       of the rollout, then those that *wait* for one. What was withdrawn takes over nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

PARTS = 10_000
"""In a hundredth of a percent: a weight of 1 % of ten thousand tenants is a hundred of them."""

Revisions = frozenset[str]
NONE: Revisions = frozenset()


@dataclass(frozen=True, slots=True)
class Rollout:
    """Tenants move to a revision. `weight` is the share of them in percent; `first` and `last` are
    tenants by name."""

    id: int
    to: str
    weight: int
    first: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()

    def takes(self, tenant: str) -> bool:
        """Whether it is this tenant's turn."""
        if tenant in self.first or tenant in self.last:
            return tenant in self.first
        return draw(self.id, tenant) < self.weight * PARTS // 100


def draw(rollout_id: int, tenant: str) -> int:
    """The number, below PARTS, that says when it is this tenant's turn."""
    name = f"{rollout_id}\0{tenant}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little") % PARTS


@dataclass(frozen=True, slots=True)
class Pool:
    """The revisions of one base model."""

    serving: Revisions
    waiting: Revisions = NONE
    rollout: Rollout | None = None

    def tiers(
        self, tenant: str, tried: Revisions | None = None, ready: Revisions | None = None
    ) -> tuple[Revisions, ...]:
        """The revisions that may run a request of this tenant; those of a tier where no engine of
        an earlier one is there.

        `tried` are those on which its adapter passed, None where it has none; `ready` those on
        which all live adapters of the tenant did, None where it has none.
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
