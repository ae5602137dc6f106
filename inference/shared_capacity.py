"""A bounded capacity divided among tenants, or networks of clients without a key. No IO, no clock.

Each tenant may take a quarter of it. Once all of it is taken, only tenants with less than an equal
share may take more, up to twice the limit in total, so tenants that flood it do not shut others
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

TENANT_SHARE = 4
"""A tenant may have one part in this many."""

TenantT = TypeVar("TenantT", bound=Hashable)


class SharedCapacity(Generic[TenantT]):
    """Take amounts with `take` and return them with `give_back`, or hold one during a block with
    `holding`. Where another condition counts as well, ask `has_room` first and then `add`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[TenantT] = Counter()
        self.total = 0
        """Taken by all tenants together; at most `2 * most`, unless `add` exceeds it."""

    def has_room(self, tenant: TenantT, amount: int) -> bool:
        """Whether the tenant may take `amount` more."""
        own, total = self._taken[tenant] + amount, self.total + amount
        if own > self._most // TENANT_SHARE:
            return False
        if total <= self._most:
            return True
        tenants = len(self._taken) + (tenant not in self._taken)
        return own <= self._most // tenants and total <= 2 * self._most

    def take(self, tenant: TenantT, amount: int) -> bool:
        """Take `amount` for the tenant; False if there is no room, and then nothing is taken."""
        if not self.has_room(tenant, amount):
            return False
        self.add(tenant, amount)
        return True

    @contextmanager
    def holding(self, tenant: TenantT, amount: int) -> Iterator[bool]:
        """Take `amount` for the block; yields whether there was room, as `take` returns it."""
        taken = self.take(tenant, amount)
        try:
            yield taken
        finally:
            if taken:
                self.give_back(tenant, amount)

    def add(self, tenant: TenantT, amount: int) -> None:
        """Take `amount` for the tenant, whether or not there is room."""
        if amount:
            self._taken[tenant] += amount
            self.total += amount

    def give_back(self, tenant: TenantT, amount: int) -> None:
        """Return `amount` that the tenant took."""
        if amount:
            self._taken[tenant] -= amount
            self.total -= amount
            if not self._taken[tenant]:
                del self._taken[tenant]
