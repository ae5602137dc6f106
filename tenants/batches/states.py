"""What a batch can become. Pure.

    validating -> in_progress -> finalizing -> completed
         |            |              ^  |----> expired
         v            v              |  '----> cancelled
       failed     cancelling --------'

A batch that is still read when it is cancelled has nothing to write: it is cancelled at once. One
that expires, or whose key ends, is finalised with what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Status(StrEnum):
    """As OpenAI's API has them."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


NEXT: Mapping[Status, frozenset[Status]] = {
    Status.VALIDATING: frozenset({Status.FAILED, Status.IN_PROGRESS, Status.CANCELLED}),
    Status.IN_PROGRESS: frozenset({Status.CANCELLING, Status.FINALIZING}),
    Status.CANCELLING: frozenset({Status.FINALIZING}),
    Status.FINALIZING: frozenset({Status.COMPLETED, Status.EXPIRED, Status.CANCELLED}),
}
"""From each state that is not an end; nothing else ever happens."""
ENDED = frozenset(Status) - NEXT.keys()
RUNNING = frozenset({Status.IN_PROGRESS, Status.CANCELLING})
"""States in which a worker has its lines."""


def before(status: Status) -> frozenset[Status]:
    """The states that may become this one."""
    return frozenset(one for one, following in NEXT.items() if status in following)
