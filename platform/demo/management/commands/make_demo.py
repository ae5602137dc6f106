"""`manage.py make_demo`: train the demo's base model and adapters again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from demo import SHIPPED, Artefacts


class Command(BaseCommand):
    help = (
        "Train the demo again: a small base model and three LoRA adapters, on generated data. "
        "Takes a few minutes on two cores; the same seed gives the same models."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--out",
            type=Path,
            default=SHIPPED.root,
            help="folder to write to (default: the demo that Lorikeet ships)",
        )
        parser.add_argument("--seed", type=int, help="another seed than the shipped demo's")

    def handle(self, *args: Any, out: Path, seed: int | None, **options: Any) -> None:
        # Here, not above: importing PyTorch takes seconds, and --help must not.
        from transformers.utils.logging import disable_progress_bar

        from demo.check import examine
        from demo.train import PLAN, SEED, make

        disable_progress_bar()  # transformers' own bars for each file would break up ours
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            made = Artefacts(Path(scratch) / out.name)
            with TrainingProgress(PLAN.steps) as report:
                make(made, SEED if seed is None else seed, PLAN, report)
            wrong = [answer for answer in examine(made) if not answer.right]
            for answer in wrong:
                self.stderr.write(
                    f"{answer.model}: {answer.question} expected {answer.expected!r}, "
                    f"said {answer.said!r}"
                )
            if wrong:
                raise CommandError(f"{len(wrong)} answers are wrong; nothing was written to {out}.")
            made.replace(Artefacts(out))
        self.stdout.write(self.style.SUCCESS(f"Every answer is right. Written to {out}."))


class TrainingProgress(AbstractContextManager[Callable[[str, int, float], None]]):
    """One bar per model, with its steps, time and loss."""

    def __init__(self, steps: dict[str, int]) -> None:
        """`steps` are the optimiser steps of each model by its name, in the order of training."""
        self.progress = Progress(
            TextColumn("{task.description:8}"),
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
