"""What a worker has for a while and runs: a batch, or a response of the background.

A lease has a number (`run`), and every write asks whether it is still the last one: whoever was
slow and lost the lease writes nothing, and who has it now knows all that was written before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, NamedTuple, Self

from django.utils import timezone

from inference.gateway.lines.frames import Open
from inference.link.wire import Usage
from tenants.batches.sources import Source
from tenants.batches.states import Status

LEASE_S = 15


class Lost(Exception):
    """Another worker has it, or it has ended."""


class Result(NamedTuple):
    """The answer to a line, what is billed of it, and the code of its error."""

    number: int
    status: int
    body: bytes
    usage: Usage = Usage()
    code: str = ""


@dataclass
class Lease(ABC):
    """Something that this worker has; what asks the database or reads files belongs in a thread."""

    PLACES: ClassVar[int]
    """So many of them one worker has at a time."""
    RENEW_S: ClassVar[float]
    """So often it is looked at at least: whether it was cancelled."""

    opening: Open
    run: int
    expires_at: datetime
    begun: bool = False
    """Whether an engine has begun with a line of it."""

    @property
    def id(self) -> str:
        return self.opening.batch

    @property
    def expired(self) -> bool:
        return timezone.now() >= self.expires_at

    @classmethod
    @abstractmethod
    def claim(cls, most: int) -> Sequence[Self]:
        """Some that nobody has: the oldest of the tenants that have the fewest at work."""

    @abstractmethod
    def open(self) -> Source:
        """Its lines."""

    @abstractmethod
    def renew(self, results: Sequence[Result] = ()) -> Status:
        """Write these answers and have it for another LEASE_S; the state that it is in.

        Raises:
            Lost: nothing was written.
        """

    @abstractmethod
    def release(self, results: Sequence[Result] = ()) -> None:
        """Write these answers; another worker may have it at once. Nothing if one has it."""

    @abstractmethod
    def finish(self, ending: Status, code: str = "") -> None:
        """No more lines are run. It ends so, for its key, where that can't be used any more by this
        error's `code`.

        Raises:
            Lost: nothing was changed.
        """
