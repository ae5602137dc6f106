"""The training pipeline from data to files, with very few steps."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors import safe_open

from demo import MODEL_NAME, Artefacts

if TYPE_CHECKING:
    from demo.train import TrainingPlan


def digests(root: Path) -> dict[str, str]:
    return {
        str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def few() -> TrainingPlan:
    """A plan with just enough steps to write every file."""
    from demo.train import TrainingPlan
    from tenants.tuning.child.optimising import Schedule

    adapters = {name: Schedule(2, 1e-3) for name in ("support", "pirate", "extract")}
    return TrainingPlan(base=Schedule(3, 1e-3), adapters=adapters)


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, int]]:
    """The progress reported while `made` was trained."""
    return []


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, few: TrainingPlan, steps: list[tuple[str, int]]
) -> Artefacts:
    from demo.train import make

    artefacts = Artefacts(tmp_path_factory.mktemp("demo"))
    make(artefacts, 1, few, lambda name, done, loss: steps.append((name, done)))
    return artefacts


def test_a_seed_decides_every_file(made: Artefacts, few: TrainingPlan, tmp_path: Path) -> None:
    from demo.train import make

    make(Artefacts(tmp_path), 1, few, lambda name, done, loss: None)
    assert digests(tmp_path) == digests(made.root)


def test_progress_is_reported_for_each_step(
    made: Artefacts, few: TrainingPlan, steps: list[tuple[str, int]]
) -> None:
    assert steps == [
        (name, done) for name, steps in few.steps.items() for done in range(1, steps + 1)
    ]


def test_an_adapter_is_two_clean_files(made: Artefacts) -> None:
    for folder in made.adapters.values():
        assert {file.name for file in folder.iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }
        config = json.loads((folder / "adapter_config.json").read_text())
        assert config["base_model_name_or_path"] == MODEL_NAME
        assert (config["peft_type"], config["r"], config["task_type"]) == ("LORA", 8, "CAUSAL_LM")


def test_the_model_made_can_be_asked(made: Artefacts) -> None:
    import torch

    from demo.check import DemoModels

    demo = DemoModels(made)
    assert demo.model.dtype == torch.float32
    assert len(demo.answers("pirate", ["Hello!", "What is 1 plus 1?"], max_tokens=2)) == 2


def test_an_older_demo_is_replaced(made: Artefacts, tmp_path: Path) -> None:
    fresh, older = Artefacts(tmp_path / "fresh"), Artefacts(tmp_path / "older")
    for artefacts, text in ((fresh, "new"), (older, "old")):
        for folder in (artefacts.base, artefacts.embedding, *artefacts.adapters.values()):
            folder.mkdir(parents=True)
            (folder / text).touch()
    fresh.replace(older)
    assert [file.name for file in older.root.rglob("*") if file.is_file()] == ["new"] * 5


def test_batches_stay_within_their_size() -> None:
    from demo.train import BATCH_TOKENS, batches, make_tokenizer

    stream = batches(make_tokenizer(1), "base", 1)
    for _, (ids, learned) in zip(range(60), stream, strict=False):
        assert ids.shape == learned.shape
        assert ids.numel() <= BATCH_TOKENS or ids.shape[0] == 1
        assert learned.any()


def test_the_rate_rises_and_falls() -> None:
    from tenants.tuning.child.optimising import Schedule

    schedule = Schedule(100, peak=1.0, warmup=10)
    rates = [schedule.rate(step) for step in range(100)]
    assert max(rates) == pytest.approx(1.0, abs=0.05)
    assert rates[0] < 0.2
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_stored_weights_are_half_precision(made: Artefacts) -> None:
    import torch

    with safe_open(made.base / "model.safetensors", framework="pt") as weights:
        assert {weights.get_tensor(key).dtype for key in weights.keys()} == {torch.float16}
    assert json.loads((made.base / "config.json").read_text())["dtype"] == "float32"
