"""A limited resource shared by tenants, or by networks of clients without a key. No IO, no clock.

Each tenant may take a quarter of it. Once all of it is taken, only tenants with less than an equal
share may take more, up to twice the limit in total, so tenants that flood it do not shut others
out.
"""

from __future__ import annotations

from collections import Counter

TENANT_SHARE = 4


class Shares:
    """Take (`take`) amounts for which there is room (`has_room`), and give them back
    (`give_back`)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()
        self._total = 0

    def has_room(self, tenant: str, amount: int) -> bool:
        """Whether the tenant may take `amount` more."""
        own, total = self._taken[tenant] + amount, self._total + amount
        if own > self._most // TENANT_SHARE:
            return False
        if total <= self._most:
            return True
        tenants = len(self._taken) + (tenant not in self._taken)
        return own <= self._most // tenants and total <= 2 * self._most

    def take(self, tenant: str, amount: int) -> None:
        """Take `amount` for the tenant, without checking for room."""
        if amount:
            self._taken[tenant] += amount
            self._total += amount

    def give_back(self, tenant: str, amount: int) -> None:
        """Return `amount` that the tenant took."""
        if amount:
            self._taken[tenant] -= amount
            self._total -= amount
            if not self._taken[tenant]:
                del self._taken[tenant]
