"""Attempts, failures and times to first token on each revision of a pool.

Rollouts are judged by these (`tenants.rollouts.driver`). They count attempts, on the revision that
had them: an attempt whose engine was lost failed there, even if another engine completed the
request. Client errors don't count as failures, nor do requests that an engine did not take.
"""

from __future__ import annotations

import msgspec

from inference.errors import Overloaded
from inference.gateway.measuring.sums import BUCKETS, MeasureSums, added, bucket_of
from inference.link.wire import Done


class RevisionTraffic(msgspec.Struct):
    """Attempts that ended on one revision. `first_tokens` counts first tokens by the bucket of
    their time since the submit."""

    requests: int = 0
    errors: int = 0
    first_tokens: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)

    def add(self, other: RevisionTraffic) -> None:
        self.requests += other.requests
        self.errors += other.errors
        self.first_tokens = added(self.first_tokens, other.first_tokens)


class CountedTraffic(MeasureSums[str, RevisionTraffic]):
    """The traffic of each revision since it was last taken."""

    def __init__(self) -> None:
        super().__init__(RevisionTraffic)

    def began(self, revision: str, seconds: float) -> None:
        """An engine sent the first token of an attempt this long after the submit."""
        self.of(revision).first_tokens[bucket_of(seconds)] += 1

    def ended(self, revision: str, *, failed: bool) -> None:
        """An attempt has ended."""
        traffic = self.of(revision)
        traffic.requests += 1
        traffic.errors += failed


def failed(done: Done) -> bool:
    """Whether an engine's `done` says that it failed."""
    if done.fault is None:
        return False
    error = done.fault.error()
    return error.http_status >= 500 and not isinstance(error, Overloaded)
