"""What a trainer and its training process tell each other.

The process's folder has PROCESS, and a folder for each job with its task and files. The trainer
writes instructions to its standard input, one a line; its messages come on its standard output.
When its standard input ends, which happens too if the trainer is killed, it saves the state of each
job and ends.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tenants.tuning_states import Method

PROCESS = "process.json"
"""A SharedTask."""
TASK = "task.json"
"""A TuningTask."""
TRAINING, VALIDATION, STATE = "training.jsonl", "validation.jsonl", "state.safetensors"
RESULT = "adapter"
"""The folder of the adapter's files."""
HELD = "held.json"
"""A list of HeldRow, written with the adapter."""


class ChildLimits(msgspec.Struct, kw_only=True):
    """What the process may use; `memory_bytes` is of what it allocates, not of a GPU's memory."""

    memory_bytes: int
    file_bytes: int
    open_files: int = 256


class SharedTask(msgspec.Struct, kw_only=True):
    """What all jobs of a process share. `base` is a folder; `modules`, `rank` and `alpha` are of
    each adapter."""

    base: str
    base_name: str
    device: str
    threads: int
    modules: list[str]
    rank: int
    alpha: int
    limits: ChildLimits


class TuningTask(msgspec.Struct, kw_only=True):
    """How to train a job. `share` is whose it is: jobs of the same share count together. `beta` is
    of `dpo`; `rate` is the peak of the learning rate; `max_row_tokens` bounds a row, `max_tokens`
    all rows of all epochs. A state is saved every `save_every_s`."""

    share: str
    seed: int
    method: Method
    beta: float
    n_epochs: int
    batch_size: int
    rate: float
    max_row_tokens: int
    max_tokens: int
    save_every_s: float


Verb = Literal["train", "stop", "drop"]


class Instruction(msgspec.Struct):
    """What to do with the job in a folder: train it beside the others, save its state and leave it,
    or forget it."""

    verb: Verb
    job: str


class TuningProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message about the job in a folder; which fields it has follows from its kind."""

    kind: Literal["started", "metrics", "state", "trained", "failed", "stopped"]
    job: str = ""
    step: int = 0
    total_steps: int = 0
    tokens: int = 0
    total_tokens: int = 0
    metrics: dict[str, float] = {}
    ends_epoch: bool = False
    file: str = ""
    base_sha256: str = ""
    code: str = ""
    message: str = ""
    param: str | None = None


LAST = ("trained", "failed", "stopped")
"""The kinds of a job's last message, after which the process does not touch its folder."""


class HeldRow(msgspec.Struct):
    """A row's tokens, and the log-probability of each but the first, without and with the adapter,
    as the trainer computes it."""

    ids: list[int]
    base: list[float]
    adapted: list[float]


class CannotTrain(Exception):
    """Training again would fail again: a stable code, a message, and the parameter at fault."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
