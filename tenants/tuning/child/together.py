"""The jobs of a training process, step by step: each step is one pass over the base model with a
batch of each job whose turn it is.

Whose turn it is: each tenant's tokens are counted, and batches are taken from those that trained
the fewest until the step is full. Small batches ride along in every step; after a large one the
next steps are of the others, until they have trained as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
from transformers.utils import logging

from tenants.tuning.child.encoding import Example
from tenants.tuning.child.learning import Lessons, learn
from tenants.tuning.child.protocol import (
    TASK,
    CannotTrain,
    Instruction,
    SharedTask,
    TuningProgress,
    TuningTask,
)
from tenants.tuning.child.shared import SharedBase

STEP_TOKENS = 4096
"""Tokens of a step of several jobs."""
Hear = Callable[[bool], Iterable[Instruction] | None]
"""The instructions that came since, None once no more will come. Waits for one if given True."""

Turn = list[tuple[str, list[Example]]]
"""Jobs with the batches of their next steps."""


class Together:
    """Trains jobs, each in a folder of the current folder, on one base model."""

    def __init__(self, task: SharedTask, say: Callable[[TuningProgress], None]) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(task.threads)
        torch.use_deterministic_algorithms(True, warn_only=True)
        self._task, self._say_all = task, say
        self._base: SharedBase | None = None
        self._jobs: dict[str, Lessons] = {}
        self._tokens: dict[str, int] = {}
        """Trained here, by share."""
        self._one_at_a_time = False

    def run(self, hear: Hear) -> None:
        """Follow the instructions until no more come; then save what is not finished."""
        while (instructions := hear(not self._jobs)) is not None:
            for instruction in instructions:
                self._obey(instruction)
            if self._jobs:
                self._step()
        for job in [*self._jobs]:
            self._stop(job)

    def _obey(self, instruction: Instruction) -> None:
        job = instruction.job
        if instruction.verb == "train":
            self._begin(job)
        elif job in self._jobs:
            self._stop(job, saving=instruction.verb == "stop")

    def _begin(self, job: str) -> None:
        folder = Path(job)
        task = msgspec.json.decode((folder / TASK).read_bytes(), type=TuningTask)
        try:
            with _known_faults():
                self._base = self._base or SharedBase(self._task)
                lessons = Lessons(self._base, task, folder, lambda message: self._say(job, message))
        except CannotTrain as fault:
            return self._fail(job, fault)
        self._jobs[job] = lessons
        self._tokens.setdefault(task.share, min(self._tokens.values(), default=0))
        self._end_if_ended(job)

    def _stop(self, job: str, *, saving: bool = True) -> None:
        if saving:
            self._jobs[job].save()
        self._leave(job)
        self._say(job, TuningProgress(kind="stopped"))

    def _fail(self, job: str, fault: CannotTrain) -> None:
        code, message, param = fault.code, fault.message, fault.param
        self._say(job, TuningProgress(kind="failed", code=code, message=message, param=param))

    def _leave(self, job: str) -> None:
        share = self._jobs.pop(job).share
        if not any(one.share == share for one in self._jobs.values()):
            del self._tokens[share]

    def _step(self) -> None:
        assert self._base is not None
        turn = self._turn(self._base)
        try:
            with _known_faults():
                losses = learn(
                    self._base, [(self._jobs[job].learner, batch) for job, batch in turn]
                )
        except CannotTrain as fault:
            return self._cannot(turn, fault)
        for (job, batch), loss in zip(turn, losses, strict=True):
            self._tokens[self._jobs[job].share] += sum(example.tokens for example in batch)
            try:
                self._jobs[job].advance(loss)
            except CannotTrain as fault:
                self._cannot([(job, batch)], fault)
            else:
                self._end_if_ended(job)

    def _turn(self, base: SharedBase) -> Turn:
        """The jobs of the next step, with their batches."""
        turn, room = Turn(), STEP_TOKENS
        for job in sorted(self._jobs, key=lambda job: self._tokens[self._jobs[job].share]):
            batch = self._jobs[job].batch()
            tokens = sum(example.tokens for example in batch)
            if not turn or (tokens <= room and not self._one_at_a_time and base.can_be_shared):
                turn.append((job, batch))
                room -= tokens
        return turn

    def _cannot(self, turn: Turn, fault: CannotTrain) -> None:
        """Fail a job that can't be trained. Of several at once it is not known which: from now on
        each step is of one."""
        if len(turn) > 1:
            self._one_at_a_time = True
            for job, _ in turn:
                self._jobs[job].learner.optimizer.zero_grad()
        else:
            ((job, _),) = turn
            self._leave(job)
            self._fail(job, fault)

    def _end_if_ended(self, job: str) -> None:
        if self._jobs[job].ended:
            self._jobs[job].finish()
            self._leave(job)

    def _say(self, job: str, message: TuningProgress) -> None:
        self._say_all(msgspec.structs.replace(message, job=job))


@contextmanager
def _known_faults() -> Iterator[None]:
    """Too little memory is a fault of what is trained."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        raise CannotTrain(
            "out_of_memory",
            "Training needs more memory than there is: use a smaller batch or shorter rows.",
        ) from error
