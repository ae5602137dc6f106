"""What requests meet on each revision of a pool: how many fail, how soon they are answered.

Rollouts are judged by it (`tenants.rollouts.driver`). Counted by attempts, on the revision that had
them: one whose engine was lost failed there, even if another engine brought it to its end. What the
client did wrong is not the engine's failure, and neither is what an engine did not take.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

from inference.errors import Overloaded
from inference.gateway.measuring.measures import DURATION_S
from inference.link.wire import Done

BUCKETS = len(DURATION_S) + 1


class Traffic(msgspec.Struct):
    """Attempts that ended on one revision. `first_tokens` counts first tokens by the bucket of
    their time since the engine was asked."""

    requests: int = 0
    errors: int = 0
    first_tokens: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)

    def add(self, other: Traffic) -> None:
        self.requests += other.requests
        self.errors += other.errors
        pairs = zip(self.first_tokens, other.first_tokens, strict=True)
        self.first_tokens = [one + more for one, more in pairs]


class Counted:
    """The traffic of each revision since it was last taken."""

    def __init__(self) -> None:
        self._of: dict[str, Traffic] = {}

    def began(self, revision: str, seconds: float) -> None:
        """An engine sent its first token so long after it was asked."""
        bucket = bisect_left(DURATION_S, seconds)
        self._of.setdefault(revision, Traffic()).first_tokens[bucket] += 1

    def ended(self, revision: str, *, failed: bool) -> None:
        """An attempt is over."""
        traffic = self._of.setdefault(revision, Traffic())
        traffic.requests += 1
        traffic.errors += failed

    def take(self) -> dict[str, Traffic]:
        """What there is; it is counted anew from now on."""
        taken, self._of = self._of, {}
        return taken

    def give_back(self, taken: Iterable[tuple[str, Traffic]]) -> None:
        """It could not be written."""
        for revision, traffic in taken:
            self._of.setdefault(revision, Traffic()).add(traffic)


def failed(done: Done) -> bool:
    """Whether an engine's last word is that it failed."""
    if done.fault is None:
        return False
    error = done.fault.error()
    return error.http_status >= 500 and not isinstance(error, Overloaded)
