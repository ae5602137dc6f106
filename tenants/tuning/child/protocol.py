"""What a trainer and its training process tell each other: files in the process's folder, and
messages on its standard output, one a line. The process is asked to save its state and end by
closing its standard input, which happens too if the trainer is killed."""

from __future__ import annotations

from typing import Literal

import msgspec

from tenants.tuning_states import Method

TRAINING, VALIDATION, STATE = "training.jsonl", "validation.jsonl", "state.safetensors"
TASK = "task.json"
"""A WholeTask."""
RESULT = "adapter"
"""The folder of the adapter's files."""


class TuningTask(msgspec.Struct, kw_only=True):
    """What to train, and how. `base` is a folder; `beta` is of `dpo`; `rate` is the peak of the
    learning rate; `max_row_tokens` bounds a row, `max_tokens` all rows of all epochs. A state is
    saved every `save_every_s`."""

    base: str
    base_name: str
    device: str
    threads: int
    seed: int
    method: Method
    beta: float
    modules: list[str]
    rank: int
    alpha: int
    n_epochs: int
    batch_size: int
    rate: float
    max_row_tokens: int
    max_tokens: int
    save_every_s: float


class ChildLimits(msgspec.Struct, kw_only=True):
    """What the process may use; `memory_bytes` is of what it allocates, not of a GPU's memory."""

    memory_bytes: int
    file_bytes: int
    open_files: int = 256


class WholeTask(msgspec.Struct):
    """A task with the limits of its process."""

    task: TuningTask
    limits: ChildLimits


class TuningProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message of the process; which fields it has follows from its kind. The last one is
    `trained`, `failed`, or a `state` if the process was stopped."""

    kind: Literal["started", "metrics", "state", "trained", "failed"]
    step: int = 0
    total_steps: int = 0
    tokens: int = 0
    metrics: dict[str, float] = {}
    ends_epoch: bool = False
    file: str = ""
    base_sha256: str = ""
    code: str = ""
    message: str = ""
    param: str | None = None
