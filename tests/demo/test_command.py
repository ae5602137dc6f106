"""`manage.py make_demo`: its arguments and its progress display. Training is tested separately."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from demo.management.commands.make_demo import TrainingProgress


def test_each_model_has_a_bar_that_follows_its_steps() -> None:
    from demo.train import PLAN

    display = TrainingProgress(PLAN.steps)
    with display as report:
        report("base", 1, 2.5)
        report("base", PLAN.base.steps, 0.5)
        report("pirate", 3, 0.25)
    bars = {task.description: task for task in display.progress.tasks}
    assert list(bars) == ["base", "support", "pirate", "extract"]
    assert bars["base"].finished
    assert (bars["pirate"].completed, bars["pirate"].fields["loss"]) == (3, 0.25)
    assert not bars["extract"].started


def test_a_seed_must_be_a_number() -> None:
    with pytest.raises(CommandError, match="seed"):
        call_command("make_demo", "--seed", "lucky")
