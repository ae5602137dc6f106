"""Counters of the busiest tenants by name, and of all others together, because each name in metrics
costs memory.

A Prometheus counter may restart at 0, but never decrease by a little. So what was counted as
`other` while a tenant had no counter of its own stays there.

No clock: time is passed in, in seconds.
"""

from __future__ import annotations

from collections import Counter

OTHER = "other"
PERIOD_S = 60.0
"""The tenants with the most tokens in one period are counted by name in the next."""
MAX_SEEN = 10_000
"""Tenants whose tokens are counted within a period to find the busiest."""


class Busiest:
    """Counts the requests and tokens of `most` tenants by name."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._names: set[str] = set()
        self._busy = Counter[str]()
        self._since = 0.0
        self.requests = Counter[tuple[str, str]]()
        """By tenant and outcome."""
        self.tokens = Counter[tuple[str, str]]()
        """By tenant and `prompt` or `output`."""

    def note(self, tenant: str, outcome: str, prompt: int, output: int, now: float) -> None:
        """A request of the tenant ended, with this many tokens."""
        if not self.most:
            return
        if now - self._since >= PERIOD_S:
            self._name(now)
        if tenant in self._busy or len(self._busy) < MAX_SEEN:
            self._busy[tenant] += 1 + prompt + output
        if len(self._names) < self.most:
            self._names.add(tenant)
        shown = tenant if tenant in self._names else OTHER
        self.requests[shown, outcome] += 1
        self.tokens[shown, "prompt"] += prompt
        self.tokens[shown, "output"] += output

    def _name(self, now: float) -> None:
        """Name the busiest tenants of the last period; earlier names stay while there is room."""
        busiest = [tenant for tenant, _ in self._busy.most_common(self.most)]
        stay = [name for name in sorted(self._names) if name not in busiest]
        self._names = {*busiest, *stay[: self.most - len(busiest)]}
        for counter in (self.requests, self.tokens):
            for key in [key for key in counter if key[0] not in {*self._names, OTHER}]:
                del counter[key]
        self._busy.clear()
        self._since = now
