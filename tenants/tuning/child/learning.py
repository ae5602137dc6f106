"""Trains LoRA adapters on the rows of their jobs; goes on from a saved state, bit for bit.

The learning rate, the order of the rows and the initial weights follow from a job's task alone, and
nothing else is random: on the same kind of processor, with as many threads, a job that is trained
alone has the same result however often its process was killed. Beside others its sums are added up
in another order, which changes their last digits.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

from tenants.tuning.child.encoding import EncodedPair, EncodedRow, Example, RowEncoder
from tenants.tuning.child.optimising import Schedule, adamw, update
from tenants.tuning.child.protocol import (
    HELD,
    RESULT,
    STATE,
    TRAINING,
    VALIDATION,
    CannotTrain,
    HeldRow,
    TuningProgress,
    TuningTask,
)
from tenants.tuning.child.rows import MAX_FAULTS, RowFault, RowsReport, rows
from tenants.tuning.child.shared import LoraWeights, SharedBase
from tenants.tuning_states import DPO, Method

PASS_TOKENS = {"cpu": 512, "cuda": 4096}
"""Tokens, with padding, that pass through the model at once; a longer row passes alone. On a CPU
what is between two layers is to stay in its caches."""
HELD_ROWS, HELD_TOKENS = 4, 256
"""Of an engine, which is to find the same log-probabilities."""
REPORTS = 200
"""Reports of metrics at most, besides those at the ends of epochs."""
WARMUP_SHARE = 10
"""One in so many steps is of the warm-up."""

Say = Callable[[TuningProgress], None]


# --- What is learned -----------------------------------------------------------------------------


class Learner(ABC):
    """An adapter in training, with its optimiser. Each method has a loss."""

    def __init__(self, base: SharedBase, task: TuningTask) -> None:
        self.task = task
        self.weights: LoraWeights = base.new_adapter(task.seed)
        self.optimizer = adamw(self.weights.all)

    @abstractmethod
    def weight(self, example: Any) -> int:
        """How much an example weighs in the mean loss of a batch."""

    @abstractmethod
    def rows(self, example: Any) -> Sequence[EncodedRow]:
        """What of an example passes through the model."""

    @abstractmethod
    def loss(self, surprises: torch.Tensor, at_base: torch.Tensor | None) -> torch.Tensor:
        """The summed loss of examples by the surprises of their rows, and those of the base model
        if it `compares`."""

    compares: bool = False

    def save(self, file: Path, step: int) -> None:
        """Write weights and optimiser."""
        tensors = {f"{at}.weight": one.data for at, one in enumerate(self.weights.all)}
        for at, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"{at}.{name}": value for name, value in moments.items()}
        on_cpu = {name: value.cpu().contiguous() for name, value in tensors.items()}
        save_file(on_cpu, file, metadata={"step": str(step)})

    def load(self, file: Path) -> int:
        """Go on from what `save` wrote; returns its step."""
        weights = self.weights.all
        state: dict[int, dict[str, torch.Tensor]] = {at: {} for at, _ in enumerate(weights)}
        with safe_open(file, "pt") as opened:
            step = int(opened.metadata()["step"])
            for name in opened.keys():
                at, _, kind = name.partition(".")
                state[int(at)][kind] = opened.get_tensor(name)
        for at, weight in enumerate(weights):
            weight.data.copy_(state[at].pop("weight"))
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        return step


class SupervisedLearner(Learner):
    """Learns rows: the loss is the cross-entropy of their learned tokens."""

    def weight(self, example: EncodedRow) -> int:
        return sum(example.learned)

    def rows(self, example: EncodedRow) -> Sequence[EncodedRow]:
        return (example,)

    def loss(self, surprises: torch.Tensor, at_base: torch.Tensor | None) -> torch.Tensor:
        return surprises.sum()


class PreferenceLearner(Learner):
    """Learns pairs by DPO: the loss of a pair is -log sigmoid(beta * m), where m is by how much
    more than the base model it finds the preferred output likelier than the other."""

    compares = True

    def weight(self, example: EncodedPair) -> int:
        return 1

    def rows(self, example: EncodedPair) -> Sequence[EncodedRow]:
        return example.preferred, example.other

    def loss(self, surprises: torch.Tensor, at_base: torch.Tensor | None) -> torch.Tensor:
        assert at_base is not None
        gained = at_base - surprises
        return -F.logsigmoid(self.task.beta * (gained[0::2] - gained[1::2])).sum()


Batches = Sequence[tuple[Learner, Sequence[Example]]]


def learn(base: SharedBase, batches: Batches) -> list[float]:
    """Add to each learner the gradient of the mean loss of its batch; returns these losses."""
    wholes = [sum(map(learner.weight, batch)) for learner, batch in batches]
    sums = [0.0] * len(batches)
    for losses in _losses(base, batches):
        scaled = [loss / wholes[at] for at, loss in losses]
        torch.stack(scaled).sum().backward()  # type: ignore[no-untyped-call]
        for (at, _), loss in zip(losses, scaled, strict=True):
            sums[at] += loss.item()
    return sums


def examine(base: SharedBase, learner: Learner, held: Sequence[Example]) -> float:
    """The mean loss of examples that are not trained on."""
    with torch.no_grad():
        total = sum(loss.item() for ((_, loss),) in _losses(base, [(learner, held)]))
    return total / sum(map(learner.weight, held))


def _losses(base: SharedBase, batches: Batches) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Pass by pass: the summed losses of the examples in it, with the numbers of their batches."""
    learners = [learner for learner, _ in batches]
    for group in _passes(batches, PASS_TOKENS[base.task.device]):
        parts = [
            (at, [row for _, example in own for row in learners[at].rows(example)])
            for at, own in groupby(group, itemgetter(0))
        ]
        with torch.no_grad():
            compared = [(None, rows) for at, rows in parts if learners[at].compares]
            at_base = iter(base.surprises(compared) if compared else ())
        found = base.surprises([(learners[at].weights, rows) for at, rows in parts])
        yield [
            (at, learners[at].loss(own, next(at_base) if learners[at].compares else None))
            for (at, _), own in zip(parts, found, strict=True)
        ]


def _passes(batches: Batches, most_tokens: int) -> Iterator[list[tuple[int, Example]]]:
    """All examples with the numbers of their batches, in passes of so many tokens: shortest
    first, since a pass is as long as its longest row, and in a pass by number."""
    sized = [
        (len(passing), max(row.tokens for row in passing), at, example)
        for at, (learner, batch) in enumerate(batches)
        for example in batch
        for passing in [learner.rows(example)]
    ]
    one_pass: list[tuple[int, Example]] = []
    height = 0
    for count, tokens, at, example in sorted(sized, key=itemgetter(1)):
        if one_pass and (height + count) * tokens > most_tokens:
            yield sorted(one_pass, key=itemgetter(0))
            one_pass, height = [], 0
        one_pass.append((at, example))
        height += count
    yield sorted(one_pass, key=itemgetter(0))


# --- A job from its first step to its last -------------------------------------------------------


class Lessons:
    """The training of a job, whose files are in a folder."""

    def __init__(self, base: SharedBase, task: TuningTask, folder: Path, say: Say) -> None:
        """Raises CannotTrain: the files can't be trained on."""
        self._base, self._task, self._folder, self._say = base, task, folder, say
        encoder = RowEncoder(base.tokenizer, task.max_row_tokens)
        self._training = encoded(folder / TRAINING, encoder, task.method, "training_file")
        self._validation = encoded(folder / VALIDATION, encoder, task.method, "validation_file")
        self._require_tokens()
        method = PreferenceLearner if task.method == DPO else SupervisedLearner
        self.learner: Learner = method(base, task)
        state = folder / STATE
        self._step = self.learner.load(state) if state.exists() else 0
        self._drawn: tuple[int, list[int]] = (-1, [])
        warmup = max(1, self.steps // WARMUP_SHARE)
        self._schedule = Schedule(self.steps, task.rate, warmup)
        self._saved_at, self._saved_step = time.monotonic(), self._step
        say(
            TuningProgress(
                kind="started",
                step=self._step,
                total_steps=self.steps,
                total_tokens=self._total_tokens,
            )
        )

    @property
    def ended(self) -> bool:
        return self._step >= self.steps

    @property
    def epoch_steps(self) -> int:
        return -(-len(self._training) // self._task.batch_size)

    @cached_property
    def steps(self) -> int:
        return self._task.n_epochs * self.epoch_steps

    @property
    def share(self) -> str:
        return self._task.share

    def batch(self) -> list[Example]:
        """What the next step is trained on."""
        epoch, at = divmod(self._step, self.epoch_steps)
        size = self._task.batch_size
        return [self._training[row] for row in self._order(epoch)[at * size : (at + 1) * size]]

    def advance(self, loss: float) -> None:
        """Take the step whose gradients were added.

        Raises:
            CannotTrain: the loss is not finite.
        """
        update(self.learner.optimizer, self._schedule.rate(self._step))
        self._step += 1
        if not loss < float("inf"):
            raise CannotTrain(
                "loss_not_finite",
                f"The loss of step {self._step} is not finite: choose a lower learning rate.",
                "learning_rate_multiplier",
            )
        ends = self._step % self.epoch_steps == 0
        if ends or self._step % -(-self.steps // REPORTS) == 0:
            self._report(loss, ends=ends)
        if time.monotonic() - self._saved_at >= self._task.save_every_s:
            self.save()

    def save(self) -> None:
        """Save the state in a file of its own, which the trainer takes away; once after a step."""
        if self._saved_step == self._step:
            return
        file = self._folder / f"state-{self._step}.safetensors"
        self.learner.save(file, self._step)
        self._saved_at, self._saved_step = time.monotonic(), self._step
        self._say(TuningProgress(kind="state", file=file.name))

    def finish(self) -> None:
        """Write the adapter, and what it says of some rows."""
        self._base.save(self.learner.weights, self._folder / RESULT)
        held = [self._held(example) for example in (self._validation or self._training)[:HELD_ROWS]]
        (self._folder / HELD).write_bytes(msgspec.json.encode(held))
        self._say(TuningProgress(kind="trained", base_sha256=self._base.sha256))

    def _held(self, example: Example) -> HeldRow:
        ids = self.learner.rows(example)[0].ids[:HELD_TOKENS]
        ways = (None, self.learner.weights)
        return HeldRow(ids, *(self._base.log_probabilities(ids, weights) for weights in ways))

    @cached_property
    def _total_tokens(self) -> int:
        return self._task.n_epochs * sum(example.tokens for example in self._training)

    def _require_tokens(self) -> None:
        task, total = self._task, self._total_tokens
        if total > task.max_tokens:
            raise CannotTrain(
                "too_many_tokens",
                f"{task.n_epochs} epochs of the training file have {total} tokens; at most "
                f"{task.max_tokens} are allowed.",
                "training_file",
            )

    def _order(self, epoch: int) -> list[int]:
        """The numbers of the rows as this epoch has them; drawn once, since each step asks."""
        if self._drawn[0] != epoch:
            order = list(range(len(self._training)))
            Random(f"{self._task.seed}-{epoch}").shuffle(order)
            self._drawn = epoch, order
        return self._drawn[1]

    def _tokens(self) -> int:
        """Tokens trained so far."""
        epochs, rest = divmod(self._step, self.epoch_steps)
        whole = epochs * sum(example.tokens for example in self._training)
        if not rest:
            return whole
        begun = self._order(epochs)[: rest * self._task.batch_size]
        return whole + sum(self._training[row].tokens for row in begun)

    def _report(self, loss: float, *, ends: bool) -> None:
        metrics = {"train_loss": round(loss, 6)}
        if ends and self._validation:
            held = examine(self._base, self.learner, self._validation)
            metrics["full_valid_loss"] = round(held, 6)
        self._say(
            TuningProgress(
                kind="metrics",
                step=self._step,
                total_steps=self.steps,
                tokens=self._tokens(),
                metrics=metrics,
                ends_epoch=ends,
            )
        )


def encoded(file: Path, encoder: RowEncoder, method: Method, param: str) -> list[Example]:
    """All rows of a file; none if there is no file.

    Raises:
        CannotTrain: a row can't be used.
    """
    found, report = list[Example](), RowsReport()
    with ExitStack() as opened:
        lines = rows(opened.enter_context(file.open("rb")), method) if file.exists() else ()
        for number, row in lines:
            try:
                found.append(encoder.encode(row))
            except RowFault as fault:
                report.refuse(str(fault), number)
            if report.full:
                break
    if report.faults:
        raise CannotTrain("invalid_file", described(report), param)
    return found


def described(report: RowsReport) -> str:
    """The faults of a file in one text, each with its line."""
    faults = [f"Line {line}: {fault}" if line else fault for line, fault in report.faults[:3]]
    more = len(report.faults) - len(faults)
    also = f"{more}{' or more' if len(report.faults) >= MAX_FAULTS else ''} other lines are invalid"
    return " ".join([*faults, f"{also}."] if more else faults)
