"""`manage.py make_adapters`: train the adapters on the demo's real model again."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from demo.management.commands.make_demo import TrainingProgress
from demo.smollm2 import ARTEFACTS, MODEL_NAME, folder_in


class Command(BaseCommand):
    help = (
        f"Train the demo's adapters on {MODEL_NAME} again, on generated data. Takes two hours on "
        "two cores. The same seed gives the same lessons."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("names", nargs="*", help="adapters to train (default: all)")
        add("--out", type=Path, default=ARTEFACTS, help="folder to write to")
        add(
            "--base",
            type=Path,
            default=folder_in(settings.VAR),
            help="the model's folder, as `fetch_demo` makes it",
        )
        add("--seed", type=int, help="seed (default: that of the shipped adapters)")

    def handle(
        self, *, names: list[str], out: Path, base: Path, seed: int | None, **options: Any
    ) -> None:
        from transformers.utils.logging import disable_progress_bar

        from demo.smollm2 import tune
        from demo.smollm2.examination import examine

        disable_progress_bar()
        if unknown := set(names) - tune.TRAININGS.keys():
            known = ", ".join(tune.TRAININGS)
            raise CommandError(f"There is no adapter {', '.join(unknown)}, only {known}.")
        chosen = {name: tune.TRAININGS[name] for name in names or tune.TRAININGS}
        steps = {name: one.steps for name, one in chosen.items()}
        seed = tune.SEED if seed is None else seed
        with TrainingProgress(steps) as report:
            for name in chosen:
                tune.make(name, base, out / name, seed, partial(report, name))
        for name in chosen:
            answers = examine(base, out / name, name)
            wrong = [answer for answer in answers if not answer.right]
            for answer in wrong:
                self.stderr.write(f"{name}: {answer.question} -> {answer.text}")
            share = f"{len(answers) - len(wrong)} of {len(answers)}"
            if len(wrong) > len(answers) // 5:
                raise CommandError(f"{name} answers only {share} questions rightly.")
            self.stdout.write(self.style.SUCCESS(f"{name}: {share} answers are right."))
