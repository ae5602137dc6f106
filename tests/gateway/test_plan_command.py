"""`manage.py plan`: what it prints, and the options that it refuses."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.inference.test_sizing import LLAMA, SPEED


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return str(tmp_path)


def planned(model: str, *options: str) -> str:
    out = StringIO()
    usual = ("--requests=20", "--prompt=1000", "--output=200")
    call_command("plan", model, *usual, *options, stdout=out)
    return out.getvalue()


def test_it_tells_the_plan_with_its_assumptions(model: str) -> None:
    told = planned(
        model, "--device=h200", "--price=4", "--adapters=1000", "--slots=32", "--cloud", "1", "3"
    )
    for part in (
        "8,030,261,248", "16.06 GB of 141 GB", "128.0 KiB", "70% of 4,800 GB/s", "Engines",
        "whose adapter has a slot", "A million tokens", "requests/s, one engine",
    ):  # fmt: skip
        assert part in told
    assert "whose adapter" not in planned(model)
    assert "never" in planned(model, "--price=400", "--cloud", "0.001", "0.001")


def test_it_tells_the_same_as_json(model: str) -> None:
    told = json.loads(planned(model, "--json", "--memory=40G", "--bandwidth=1000", "--tflops=100"))
    assert told["assumed"]["device"]["memory"] == 40 << 30
    assert told["assumed"]["device"]["bandwidth"] == 1e12
    assert told["plan"]["kv_token"] == 131072 and told["plan"]["engines"] > 1


def test_a_measured_speed_takes_the_place_of_the_data_sheet(model: str, tmp_path: Path) -> None:
    (file := tmp_path / "speed.json").write_text(SPEED)
    told = planned(model, f"--speed={file}")
    assert "Measured: a step of 4 sequences" in told and "bandwidth reached" not in told
    told = json.loads(planned(model, f"--speed={file}", "--json"))
    assert told["measured"]["request_s"] == 1 and told["plan"]["ttft_s"] > 1
    with pytest.raises(CommandError, match="gone cannot be read"):
        planned(model, "--speed=gone")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory=8G"], "does not fit"),
        (["--bandwidth=-1"], "more than 0"),
        (["--prompt=0"], "more than 0"),
        (["--cached=2"], "--cached is 2.0: it must be from 0 to 1"),
        (["--load=1"], "from 0.01 to 0.99"),
    ],
)
def test_what_cannot_be_is_refused(model: str, options: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        planned(model, *options)


def test_traffic_is_required(model: str) -> None:
    with pytest.raises(CommandError, match="--requests is required without --history"):
        call_command("plan", model)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CommandError, match=r"config\.json cannot be read"):
        planned(str(tmp_path))
