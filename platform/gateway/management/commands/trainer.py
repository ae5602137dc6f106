"""`manage.py trainer`: trains the adapters of fine-tuning jobs."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from gateway.queues import run
from gateway.scaling import ray_tasks
from gateway.schema import require_migrated
from inference.process.logs import configure
from tenants.adapters import parity
from tenants.tuning import jobs
from tenants.tuning.training import Trainer

STOP_S = 60
"""How long a training process may take to save its state."""
NVIDIA = "/proc/driver/nvidia/version"


class Command(BaseCommand):
    help = (
        "Run one trainer process: it trains the adapters of fine-tuning jobs on the base models in "
        "LORIKEET_BASE_MODELS. Any number of them may run; another goes on with the job of one "
        "that is killed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--concurrency",
            type=int,
            default=1,
            help="jobs that are trained at a time (%(default)s)",
        )
        parser.add_argument(
            "--device",
            choices=["auto", "cpu", "cuda"],
            default="auto",
            help="where to train; auto: on the GPU if there is one",
        )
        parser.add_argument(
            "--once", action="store_true", help="train the jobs that wait, then end"
        )
        parser.add_argument(
            "--ray",
            metavar="ADDRESS",
            help="train the jobs that wait, if there are any, as a task on this Ray cluster, such "
            "as 10.0.0.1:6379; its node has the base models",
        )
        parser.add_argument(
            "--cpus", type=float, default=1.0, help="CPUs that Ray reserves (%(default)s)"
        )
        parser.add_argument(
            "--gpus", type=float, default=0.0, help="GPUs that Ray reserves (%(default)s)"
        )
        parser.add_argument(
            "--resources",
            type=json.loads,
            default={},
            help='other Ray resources that it needs, such as {"trainer": 1}',
        )

    def handle(self, *args: Any, **options: Any) -> None:
        require_migrated()
        configure("trainer", settings.LOG_LEVEL)
        if not settings.BASE_MODELS:
            raise CommandError("LORIKEET_BASE_MODELS is not set: it must name base models to train")
        if options["ray"]:
            return self._train_on_ray(options)
        try:
            bases = {name: parity.base_folder(name) for name in settings.BASE_MODELS}
        except parity.NotCompared as error:
            raise CommandError(f"LORIKEET_BASE_MODELS: {error}") from None
        device = options["device"]
        if device == "auto":
            device = "cuda" if os.path.exists(NVIDIA) else "cpu"
        trainer = jobs.trainers.own = Trainer(bases, device)
        queues = {jobs.TRAINING_QUEUE: options["concurrency"]}
        asyncio.run(run(queues, {}, trainer.stopping.set, STOP_S, wait=not options["once"]))
        return None

    def _train_on_ray(self, options: dict[str, Any]) -> None:
        """Ask for a node only if there is something to train."""
        if not jobs.is_anything_to_train():
            self.stdout.write("No fine-tuning job waits for a trainer.")
            return
        own = ["--concurrency", str(options["concurrency"]), "--device", options["device"]]
        try:
            ray_tasks.train(
                options["ray"],
                own,
                num_cpus=options["cpus"],
                num_gpus=options["gpus"],
                resources=options["resources"],
            )
        except ray_tasks.TrainerFailed as error:
            raise CommandError(f"The trainer on Ray failed: {error}") from None
