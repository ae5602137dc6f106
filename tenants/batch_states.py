"""The states of a batch and the transitions between them. Pure.

    validating -> in_progress -> finalizing -> completed
         |            |              ^  |----> expired
         v            v              |  '----> cancelled
       failed     cancelling --------'

A batch that is cancelled while its file is still being read has nothing to write, so it is
cancelled at once. A batch that expires, or whose key ends, is finalised with the answers it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Status(StrEnum):
    """The states of OpenAI's API."""

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
"""The only transitions, from each state that is not final."""
ENDED = frozenset(Status) - NEXT.keys()
RUNNING = frozenset({Status.IN_PROGRESS, Status.CANCELLING})
"""States in which a worker runs its lines."""


def before(status: Status) -> frozenset[Status]:
    """The states that may become this one."""
    return frozenset(one for one, following in NEXT.items() if status in following)
