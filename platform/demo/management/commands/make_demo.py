"""`manage.py make_demo`: train the demo's base model and adapters again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from demo import SHIPPED, Artefacts

EMBEDDING = "embedding"


class Command(BaseCommand):
    help = (
        "Train the demo again on generated data: a small base model, three LoRA adapters "
        "and an embedding model. Takes a few minutes on two cores. The same seed gives "
        "the same models."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--out",
            type=Path,
            default=SHIPPED.root,
            help="folder to write to (default: the demo that Lorikeet ships)",
        )
        parser.add_argument("--seed", type=int, help="seed (default: that of the shipped demo)")

    def handle(self, *args: Any, out: Path, seed: int | None, **options: Any) -> None:
        # Not at the top: importing PyTorch takes seconds, and --help must not.
        from transformers.utils.logging import disable_progress_bar

        from demo import embed
        from demo.check import examine
        from demo.train import PLAN, SEED, make

        disable_progress_bar()  # transformers' own bars for each file would break up ours
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            made = Artefacts(Path(scratch) / out.name)
            seed = SEED if seed is None else seed
            with TrainingProgress(PLAN.steps | {EMBEDDING: embed.SCHEDULE.steps}) as report:
                make(made, seed, PLAN, report)
                embed.make(made.embedding, seed, embed.SCHEDULE, partial(report, EMBEDDING))
            wrong = [answer for answer in examine(made) if not answer.right]
            for answer in wrong:
                self.stderr.write(
                    f"{answer.model}: {answer.question} expected {answer.expected!r}, "
                    f"said {answer.answer!r}"
                )
            unfound = embed.wrong_answers(made.embedding)
            for question in unfound:
                self.stderr.write(f"{EMBEDDING}: {question} does not find what it should")
            if count := len(wrong) + len(unfound):
                raise CommandError(f"{count} answers are wrong; nothing was written to {out}.")
            made.replace(Artefacts(out))
        self.stdout.write(self.style.SUCCESS(f"Every answer is right. Written to {out}."))


class TrainingProgress(AbstractContextManager[Callable[[str, int, float], None]]):
    """One bar per model, with its steps, time and loss."""

    def __init__(self, steps: dict[str, int]) -> None:
        """`steps` are the optimiser steps of each model by its name, in the order of training."""
        self.progress = Progress(
            TextColumn("{task.description:9}"),
            BarColumn(),
            TextColumn("{task.completed:4}/{task.total} steps"),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self.bars: dict[str, TaskID] = {
            name: self.progress.add_task(name, start=False, total=total, loss=0.0)
            for name, total in steps.items()
        }

    def __enter__(self) -> Callable[[str, int, float], None]:
        self.progress.start()
        return self.stepped

    def stepped(self, name: str, done: int, loss: float) -> None:
        """One step of the model `name` is done."""
        self.progress.start_task(self.bars[name])
        self.progress.update(self.bars[name], completed=done, loss=loss)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()
