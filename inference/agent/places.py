"""How many requests run and how much KV they hold. No engine, no loop: arithmetic.

Capacity is KV: a request holds its prompt, what it has generated, and GROWTH_TOKENS for what it
generates next (less, if it may not generate as much). Setting its `max_tokens` aside would leave
most of the KV idle, for answers mostly end earlier; where too many grow at once, vLLM preempts by
`Queue.priority`. A prompt's cached part counts in full: it is shared, but it has to be there.

A request larger than all of the KV runs alone.

The last `reserved` places, and as large a share of the KV, are for those with few running
requests, so that a newcomer finds room while a flood's long answers run. `Queue` says who that
is. So at most `reserved / max_running` of the engine is left idle while others wait.
"""

from __future__ import annotations

from collections import Counter

GROWTH_TOKENS = 64
"""vLLM gives KV out in blocks of 16 or 32 tokens: up to one is partly empty, and one is next."""


def growth(generated: int, max_tokens: int | None) -> int:
    """How many tokens more a request is given room for."""
    if max_tokens is None:
        return GROWTH_TOKENS
    return min(GROWTH_TOKENS, max(0, max_tokens - generated))


class Places:
    """The engine's places and KV."""

    def __init__(self, *, max_running: int, kv_tokens: int, reserved: int) -> None:
        if not 0 <= reserved < max(1, max_running):
            raise ValueError(f"reserved={reserved} must be less than max_running={max_running}")
        self._max_running, self._kv_tokens = max_running, kv_tokens
        self.reserved = reserved
        self._kv_open = kv_tokens - kv_tokens * reserved // max(1, max_running)
        self._running: Counter[str] = Counter()
        self._total = 0
        self.kv_held = 0
        """Tokens; growth can take it over capacity, admission never does."""

    def running(self, tenant: str) -> int:
        """Requests of this tenant running."""
        return self._running[tenant]

    def share(self, tenants: int) -> int:
        """Each one's share of the places, were there one tenant more than these; at least one."""
        return max(1, self._max_running // (tenants + 1))

    def free(self, *, reserve: bool) -> bool:
        """Whether there is a place, the reserve counted in or not."""
        return self._total + (0 if reserve else self.reserved) < self._max_running

    def fits(self, tokens: int, *, reserve: bool) -> bool:
        """Whether there is KV for a request that holds so much."""
        if not self._total:
            return True
        return self.kv_held + tokens <= (self._kv_tokens if reserve else self._kv_open)

    def start(self, tenant: str, tokens: int) -> None:
        """A request starts that holds this much."""
        self._running[tenant] += 1
        self._total += 1
        self.kv_held += tokens

    def finish(self, tenant: str, tokens: int) -> None:
        """A request that held this much has ended."""
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        self._total -= 1
        self.kv_held -= tokens
