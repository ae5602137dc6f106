"""Something of which there is so much, shared by tenants, or by networks of clients without a key.
No IO, no clock.

Each tenant may have a quarter of it. Where all is taken, only who has less than an equal share may
add to it, up to twice as much in all: some that flood it shut nobody else out.
"""

from __future__ import annotations

from collections import Counter

TENANT_SHARE = 4


class Shares:
    """`take` what there is room for, `give_back` what was taken."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()
        self._total = 0

    def has_room(self, tenant: str, amount: int) -> bool:
        """Whether the tenant may take so much more."""
        own, total = self._taken[tenant] + amount, self._total + amount
        if own > self._most // TENANT_SHARE:
            return False
        if total <= self._most:
            return True
        tenants = len(self._taken) + (tenant not in self._taken)
        return own <= self._most // tenants and total <= 2 * self._most

    def take(self, tenant: str, amount: int) -> None:
        """The tenant has so much more."""
        if amount:
            self._taken[tenant] += amount
            self._total += amount

    def give_back(self, tenant: str, amount: int) -> None:
        """The tenant has so much less."""
        if amount:
            self._taken[tenant] -= amount
            self._total -= amount
            if not self._taken[tenant]:
                del self._taken[tenant]
