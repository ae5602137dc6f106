"""The lease under which a worker runs a batch or a background response for a limited time.

A lease has a number (`run`), and every write checks that it is still the latest: a slow worker that
has lost its lease writes nothing, and the new holder sees everything that was written before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, NamedTuple, Self

from django.utils import timezone

from inference.gateway.lines.frames import OpenBatch
from inference.link.accounts import Usage
from tenants.batch_states import Status
from tenants.batches.sources import BatchSource

LEASE_S = 15


class Lost(Exception):
    """Another worker has the lease, or the batch or response has ended."""


class Result(NamedTuple):
    """The answer to a line, its billed usage, and the code of its error if it failed."""

    number: int
    status: int
    body: bytes
    usage: Usage = Usage()
    code: str = ""

    @property
    def first_token_ms(self) -> float | None:
        """Time to the first token, from when its engine began with it."""
        return self._since_begun_ms(self.usage.ttft_s)

    @property
    def total_ms(self) -> float | None:
        """As `first_token_ms`, to the end of the answer; None if no engine had it."""
        return self._since_begun_ms(self.usage.total_s or None)

    def _since_begun_ms(self, seconds: float | None) -> float | None:
        if seconds is None:
            return None
        waited_s = self.usage.queue_s + self.usage.load_s
        return round(1000 * max(0.0, seconds - waited_s), 1)


@dataclass
class Lease(ABC):
    """A batch or response that this worker runs. The methods block on the database or on files:
    call them in a thread."""

    MAX_LEASES: ClassVar[int]
    """How many leases of this kind one worker holds at most."""
    RENEW_S: ClassVar[float]
    """Longest time between renewals, each of which also checks for cancellation."""

    opening: OpenBatch
    run: int
    expires_at: datetime
    begun: bool = False
    """Whether an engine has begun any of its lines."""

    @property
    def id(self) -> str:
        return self.opening.batch

    @property
    def expired(self) -> bool:
        return timezone.now() >= self.expires_at

    @classmethod
    @abstractmethod
    def claim(cls, most: int) -> Sequence[Self]:
        """Lease at most `most` that no worker has: those of the tenants with the fewest running
        first, then the oldest."""

    @abstractmethod
    def open(self) -> BatchSource:
        """Its lines."""

    @abstractmethod
    def renew(self, results: Sequence[Result] = ()) -> Status:
        """Write the answers and extend the lease by LEASE_S. Returns the current state.

        Raises:
            Lost: nothing was written.
        """

    @abstractmethod
    def release(self, results: Sequence[Result] = ()) -> None:
        """Write the answers and give up the lease, so that another worker can claim it at once.
        Does nothing if it is lost."""

    @abstractmethod
    def finish(self, ending: Status, code: str = "") -> None:
        """End it as `ending`: no more lines are run. `code` is that of the error because of which
        its API key can't be used any more, if that is the reason.

        Raises:
            Lost: nothing was changed.
        """
