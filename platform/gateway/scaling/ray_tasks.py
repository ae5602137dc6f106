"""`manage.py trainer --ray ADDRESS`: a trainer as a task on a Ray cluster.

Ray places the task on a node with what it needs, and adds one if its own autoscaler can. The task
trains what waits (`--once`) and ends. If it dies, its jobs go on from their last saved states with
the next one.

Ray's nodes need the same as a trainer: Lorikeet, importable, the base models, and the shared
storage under the same names. The task is given the trainer's settings and secrets. Any client that
reaches Ray's ports can read them, so its ports must be private.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from gateway.start import MANAGE
from inference.process.environ import BadSetting


class TrainerFailed(Exception):
    """The task did not end well; the message says why."""


def train(address: str, options: list[str], **placement: Any) -> None:
    """Run a trainer with these options as a task, and wait for its end. `placement` has Ray's
    `num_cpus`, `num_gpus` and `resources`.

    Raises:
        BadSetting: Ray is not installed.
        TrainerFailed: the cluster is not reached, or the task died.
    """
    try:
        import ray
    except ImportError:
        raise BadSetting("Ray is not installed: pip install 'ray[serve]'") from None
    try:
        ray.init(address)
        task = ray.remote(max_retries=0, **placement)(run_trainer)
        running = task.remote(options, settings_of(os.environ))
        try:
            ray.get(running)
        except KeyboardInterrupt:
            ray.cancel(running)
            raise
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise TrainerFailed(str(error)) from None


def settings_of(variables: Mapping[str, str]) -> dict[str, str]:
    """The settings and secrets among these variables of a trainer's environment."""
    return {
        name: value for name, value in variables.items() if name.startswith(("LORIKEET_", "AWS_"))
    }


def run_trainer(options: list[str], settings: Mapping[str, str]) -> None:
    """The task: run a trainer until nothing waits. If the task is cancelled, the trainer saves the
    states of its jobs.

    Raises:
        subprocess.CalledProcessError: it ended with an error.
    """
    command = [*MANAGE, "trainer", "--once", *options]
    process = subprocess.Popen(command, env=os.environ | settings)
    try:
        status = process.wait()
    finally:
        process.terminate()  # without effect if it has ended
        process.wait()
    if status:
        raise subprocess.CalledProcessError(status, command)
