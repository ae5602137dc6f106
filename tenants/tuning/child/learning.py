"""Trains a LoRA adapter on the rows of a folder; goes on from a saved state, bit for bit.

The learning rate, the order of the rows and the initial weights follow from the task alone, and
nothing else is random: on the same kind of processor, with as many threads, the result is the same
however often the process was killed.
"""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from tenants.tuning.child.encoding import EncodedPair, EncodedRow, Example, RowEncoder
from tenants.tuning.child.optimising import Schedule, adamw, optimise, save_adapter
from tenants.tuning.child.protocol import (
    RESULT,
    STATE,
    TRAINING,
    VALIDATION,
    TuningProgress,
    TuningTask,
)
from tenants.tuning.child.rows import MAX_FAULTS, RowFault, RowsReport, rows
from tenants.tuning_states import DPO, Method

GROUP_TOKENS = 4096
"""Tokens, with padding, that pass through the model at once; a longer row passes alone."""
REPORTS = 200
"""Reports of metrics at most, besides those at the ends of epochs."""
WARMUP_SHARE = 10
"""One in so many steps is of the warm-up."""

Say = Callable[[TuningProgress], None]


class Stopped(Exception):
    """The trainer wants no more; the state is saved."""


class CannotTrain(Exception):
    """Training again would fail again: a stable code, a message, and the parameter at fault."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def train(task: TuningTask, say: Say, wanted: Callable[[], bool]) -> None:
    """Train on the files of the current folder and write the adapter to RESULT. `say` gets messages
    about the progress; `wanted` is asked after each step whether to go on.

    Raises:
        Stopped: it was not wanted; the last message names the saved state.
        CannotTrain: as it says.
    """
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(task.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    tokenizer = AutoTokenizer.from_pretrained(task.base, local_files_only=True)
    encoder = RowEncoder(tokenizer, task.max_row_tokens)
    training = encoded(Path(TRAINING), encoder, task.method, "training_file")
    validation = encoded(Path(VALIDATION), encoder, task.method, "validation_file")
    total = task.n_epochs * sum(example.tokens for example in training)
    if total > task.max_tokens:
        raise CannotTrain(
            "too_many_tokens",
            f"{task.n_epochs} epochs of the training file have {total} tokens; at most "
            f"{task.max_tokens} are allowed.",
            "training_file",
        )
    learner = PreferenceLearner(task) if task.method == DPO else SupervisedLearner(task)
    Lessons(task, learner, training, validation, say, wanted).run()


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
    told = [f"Line {line}: {said}" if line else said for line, said in report.faults[:3]]
    more = len(report.faults) - len(told)
    also = f"{more}{' or more' if len(report.faults) >= MAX_FAULTS else ''} other lines are invalid"
    return " ".join([*told, f"{also}."] if more else told)


class Learner(ABC):
    """A base model with a new adapter, and its optimiser. Each method has a loss."""

    def __init__(self, task: TuningTask) -> None:
        self.task = task
        self.dtype = torch.float32 if task.device == "cpu" else torch.bfloat16
        model: Any = AutoModelForCausalLM.from_pretrained(
            task.base, dtype=self.dtype, local_files_only=True, use_safetensors=True
        )
        torch.manual_seed(task.seed)
        config = LoraConfig(
            r=task.rank,
            lora_alpha=task.alpha,
            target_modules=_targets(model, task.modules),
            task_type="CAUSAL_LM",
        )
        self.adapted: Any = get_peft_model(model, config).to(task.device).train()
        self.weights = [one for one in self.adapted.parameters() if one.requires_grad]
        for weight in self.weights:
            weight.data = weight.data.float()
        self.optimizer = adamw(self.weights)

    @abstractmethod
    def weight(self, example: Any) -> int:
        """How much an example weighs in the mean loss of a batch."""

    @abstractmethod
    def losses(self, batch: Sequence[Any]) -> Iterator[torch.Tensor]:
        """The summed losses of a group of examples at a time."""

    def learn(self, batch: Sequence[Example]) -> float:
        """Add the gradient of the batch's mean loss; returns it."""
        whole = sum(map(self.weight, batch))
        total = 0.0
        for loss in self.losses(batch):
            (loss / whole).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        return total / whole

    def examine(self, held: Sequence[Example]) -> float:
        """The mean loss of examples that are not trained on."""
        with torch.no_grad():
            total = sum(loss.item() for loss in self.losses(held))
        return total / sum(map(self.weight, held))

    def entropies(self, rows: Sequence[EncodedRow]) -> tuple[torch.Tensor, torch.Tensor]:
        """The cross-entropy of each learned token of these rows, and the number of its row. Padding
        is on the right, where a causal model does not look."""
        length = max(row.tokens for row in rows)
        ids = _padded([row.ids for row in rows], length, 0).to(self.task.device)
        learned = _padded([row.learned for row in rows], length, False)[:, 1:]
        places = learned.any(0).nonzero()[:, 0].to(self.task.device)
        chosen = learned.to(self.task.device)[:, places]
        output = self.adapted(input_ids=ids, use_cache=False, logits_to_keep=places)
        logits, following = output.logits[chosen], ids[:, 1:][:, places][chosen]
        return F.cross_entropy(logits.float(), following, reduction="none"), chosen.nonzero()[:, 0]

    def save(self, file: Path, step: int) -> None:
        """Write weights and optimiser."""
        tensors = {f"{at}.weight": one.data for at, one in enumerate(self.weights)}
        for at, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"{at}.{name}": value for name, value in moments.items()}
        on_cpu = {name: value.cpu().contiguous() for name, value in tensors.items()}
        save_file(on_cpu, file, metadata={"step": str(step)})

    def load(self, file: Path) -> int:
        """Go on from what `save` wrote; returns its step."""
        state: dict[int, dict[str, torch.Tensor]] = {at: {} for at, _ in enumerate(self.weights)}
        with safe_open(file, "pt") as opened:
            step = int(opened.metadata()["step"])
            for name in opened.keys():
                at, _, kind = name.partition(".")
                state[int(at)][kind] = opened.get_tensor(name)
        for at, weight in enumerate(self.weights):
            weight.data.copy_(state[at].pop("weight"))
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        return step


class SupervisedLearner(Learner):
    """Learns rows: the loss is the cross-entropy of their learned tokens."""

    def weight(self, example: EncodedRow) -> int:
        return sum(example.learned)

    def losses(self, batch: Sequence[EncodedRow]) -> Iterator[torch.Tensor]:
        for group in _groups(batch, lambda row: row.tokens):
            yield self.entropies(group)[0].sum()


class PreferenceLearner(Learner):
    """Learns pairs by DPO: the loss of a pair is -log sigmoid(beta * m), where m is by how much
    more than the base model it finds the preferred output likelier than the other."""

    def weight(self, example: EncodedPair) -> int:
        return 1

    def losses(self, batch: Sequence[EncodedPair]) -> Iterator[torch.Tensor]:
        for group in _groups(batch, lambda pair: 2 * max(pair.preferred.tokens, pair.other.tokens)):
            rows = [pair.preferred for pair in group] + [pair.other for pair in group]
            with torch.no_grad(), self.adapted.disable_adapter():
                before = self._likelihoods(rows)
            gained = self._likelihoods(rows) - before
            margins = gained[: len(group)] - gained[len(group) :]
            yield -F.logsigmoid(self.task.beta * margins).sum()

    def _likelihoods(self, rows: Sequence[EncodedRow]) -> torch.Tensor:
        """The log-likelihood of what is learned of each row."""
        entropies, numbers = self.entropies(rows)
        return -torch.zeros(len(rows), device=entropies.device).index_add(0, numbers, entropies)


@dataclass
class Lessons:
    """A training from its first step, or a saved one, to the end."""

    task: TuningTask
    learner: Learner
    training: Sequence[Example]
    validation: Sequence[Example]
    say: Say
    wanted: Callable[[], bool]
    saved_at: float = 0.0

    @property
    def epoch_steps(self) -> int:
        return -(-len(self.training) // self.task.batch_size)

    @cached_property
    def steps(self) -> int:
        return self.task.n_epochs * self.epoch_steps

    def run(self) -> None:
        """Raises Stopped or CannotTrain."""
        self.step = self.learner.load(Path(STATE)) if Path(STATE).exists() else 0
        self.saved_at = time.monotonic()
        self.say(TuningProgress(kind="started", step=self.step, total_steps=self.steps))
        warmup = max(1, self.steps // WARMUP_SHARE)
        schedule = Schedule(self.steps, self.task.rate, warmup)
        optimise(self.learner.optimizer, schedule, self._backward, self._after, self.step)
        save_adapter(self.learner.adapted, Path(RESULT), self.task.base_name, self.learner.dtype)
        digest = digest_of_weights(Path(self.task.base))
        self.say(TuningProgress(kind="trained", base_sha256=digest))

    def _backward(self) -> float:
        return self.learner.learn(self._batch(self.step))

    def _batch(self, step: int) -> list[Example]:
        epoch, at = divmod(step, self.epoch_steps)
        size = self.task.batch_size
        return [self.training[row] for row in self._order(epoch)[at * size : (at + 1) * size]]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self.training)))
        Random(f"{self.task.seed}-{epoch}").shuffle(order)
        return order

    def _tokens(self, step: int) -> int:
        """Tokens trained in so many steps."""
        epochs, rest = divmod(step, self.epoch_steps)
        whole = epochs * sum(example.tokens for example in self.training)
        if not rest:
            return whole
        begun = self._order(epochs)[: rest * self.task.batch_size]
        return whole + sum(self.training[row].tokens for row in begun)

    def _after(self, step: int, loss: float) -> None:
        self.step = step
        if not loss < float("inf"):
            raise CannotTrain(
                "loss_not_finite",
                f"The loss of step {step} is not finite: choose a lower learning rate.",
                "learning_rate_multiplier",
            )
        ends = step % self.epoch_steps == 0
        if ends or step % -(-self.steps // REPORTS) == 0:
            self._report(loss, ends=ends)
        wanted = self.wanted()
        if not wanted or time.monotonic() - self.saved_at >= self.task.save_every_s:
            self._save()
        if not wanted and step < self.steps:
            raise Stopped

    def _report(self, loss: float, *, ends: bool) -> None:
        metrics = {"train_loss": round(loss, 6)}
        if ends and self.validation:
            metrics["full_valid_loss"] = round(self.learner.examine(self.validation), 6)
        self.say(
            TuningProgress(
                kind="metrics",
                step=self.step,
                total_steps=self.steps,
                tokens=self._tokens(self.step),
                metrics=metrics,
                ends_epoch=ends,
            )
        )

    def _save(self) -> None:
        """Into a file of its own, which the trainer takes away."""
        file = Path(f"state-{self.step}.safetensors")
        self.learner.save(file, self.step)
        self.saved_at = time.monotonic()
        self.say(TuningProgress(kind="state", file=file.name))


def digest_of_weights(base: Path) -> str:
    """The SHA-256 of the digests of a model's safetensors files, in the order of their names."""
    digests = []
    for path in sorted(base.glob("*.safetensors")):
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _targets(model: Any, modules: Sequence[str]) -> list[str]:
    """The names of the linear layers that can carry an adapter, but for the output."""
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    found = sorted(linear & {*modules} - {"lm_head"})
    if not found:
        raise CannotTrain("model_not_supported", "This base model has no linear layers to adapt.")
    return found


def _groups(batch: Sequence[Any], padded: Callable[[Any], int]) -> Iterator[list[Any]]:
    """The examples, shortest first, in groups of at most GROUP_TOKENS; `padded` is how many tokens
    one has among those that are no longer."""
    group: list[Any] = []
    for example in sorted(batch, key=padded):
        if group and padded(example) * (len(group) + 1) > GROUP_TOKENS:
            yield group
            group = []
        group.append(example)
    yield group


def _padded(rows: Sequence[list[Any]], length: int, filler: Any) -> torch.Tensor:
    return torch.tensor([row + [filler] * (length - len(row)) for row in rows])
