"""The methods of fine-tuning, the states of a job and the transitions between them. Pure.

    validating_files -> queued <-> running -> succeeded
          |            ^  |          |  '---> failed
          v            |  v          |
        failed         paused <------'

A job can be cancelled in each state that is not final. A running job is queued again if its trainer
stops or its training process crashes; it goes on from its last saved state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Literal

Method = Literal["supervised", "dpo"]
"""By OpenAI's names."""
SUPERVISED: Final = "supervised"
DPO: Final = "dpo"
"""Direct preference optimisation (Rafailov et al., 2023, arXiv:2305.18290)."""


class TuningStatus(StrEnum):
    """The states of OpenAI's API."""

    VALIDATING_FILES = "validating_files"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


S = TuningStatus
NEXT: Mapping[TuningStatus, frozenset[TuningStatus]] = {
    S.VALIDATING_FILES: frozenset({S.QUEUED, S.FAILED, S.CANCELLED}),
    S.QUEUED: frozenset({S.RUNNING, S.PAUSED, S.CANCELLED}),
    S.RUNNING: frozenset({S.QUEUED, S.PAUSED, S.SUCCEEDED, S.FAILED, S.CANCELLED}),
    S.PAUSED: frozenset({S.QUEUED, S.CANCELLED}),
}
"""The only transitions, from each state that is not final."""
ENDED = frozenset(TuningStatus) - NEXT.keys()


def before(status: TuningStatus) -> frozenset[TuningStatus]:
    """The states that may become this one."""
    return frozenset(one for one, following in NEXT.items() if status in following)
