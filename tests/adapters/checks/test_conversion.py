"""Other trainers' names and defaults become PEFT's, without a change of any number."""

from __future__ import annotations

import io
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from inference.content import CONFIG, WEIGHTS
from tenants.adapters.checks.static import Verdict, check
from tenants.adapters.checks.target_modules import PREFIX
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tests.adapters.checks.builder import TARGETS, Weights, config_bytes, looked_at, lora

PLAIN = {CONFIG: config_bytes(), WEIGHTS: lora().bytes()}


def renamed(rename: Callable[[str], str]) -> bytes:
    weights, plain = Weights(), lora()
    for name, entry in plain.entries.items():
        weights.entries[rename(name)], weights.data[rename(name)] = entry, plain.data[name]
    return weights.bytes()


def checked(files: Mapping[str, bytes]) -> Verdict:
    weights = files[WEIGHTS]
    return check(io.BytesIO(files[CONFIG]), io.BytesIO(weights), len(weights), TARGETS)


def same(one: bytes, other: bytes) -> bool:
    first, second = safetensors.numpy.load(one), safetensors.numpy.load(other)
    return first.keys() == second.keys() and all(
        np.array_equal(value, second[name]) for name, value in first.items()
    )


def test_what_peft_saves_stays_as_it_is() -> None:
    found, served = looked_at(PLAIN)
    assert (found.converted, served) == ({}, PLAIN)
    assert found.size_bytes == sum(map(len, PLAIN.values()))


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.replace(".weight", ".default.weight"),
        lambda name: name.removeprefix(PREFIX),
        lambda name: PREFIX + name,
        lambda name: "_orig_mod." + name,
        lambda name: name.replace(PREFIX, f"{PREFIX}_orig_mod."),
        lambda name: "module." + name.replace("layers.", "layers._fsdp_wrapped_module."),
        lambda name: name.replace("layers.1", "layers.1._checkpoint_wrapped_module"),
    ],
)
def test_names_of_tensors(rename: Callable[[str], str]) -> None:
    sent = PLAIN | {WEIGHTS: renamed(rename)}
    found, served = looked_at(sent)
    assert same(served[WEIGHTS], PLAIN[WEIGHTS])
    assert checked(served).accepted
    assert found.converted.keys() == {WEIGHTS}
    assert "tensors were renamed, such as" in found.converted[WEIGHTS][0]
    assert found.size_bytes == len(served[CONFIG] + served[WEIGHTS] + sent[WEIGHTS])


def test_two_adapters_in_one_file_are_not_made_one() -> None:
    weights = lora()
    for name in list(weights.entries):
        weights.put(name.replace(".weight", ".other.weight"), weights.entries[name]["shape"])
    sent = PLAIN | {WEIGHTS: weights.bytes()}
    found, served = looked_at(sent)
    assert (found.converted, served) == ({}, sent)
    assert not checked(served).accepted


def test_what_peft_takes_for_missing_fields() -> None:
    sent = {CONFIG: config_bytes(r=..., lora_alpha=..., bias=...), WEIGHTS: lora(rank=8).bytes()}
    found, served = looked_at(sent)
    verdict = checked(served)
    assert verdict.config is not None, list(verdict.findings)
    assert (verdict.config.rank, verdict.config.alpha) == (8, 8)
    assert found.converted == {
        CONFIG: [
            "r was missing, so PEFT's default is used: 8.",
            "lora_alpha was missing, so PEFT's default is used: 8.",
        ]
    }


def test_a_byte_order_mark_is_removed() -> None:
    found, served = looked_at(PLAIN | {CONFIG: BOM_UTF8 + PLAIN[CONFIG]})
    assert served == PLAIN
    assert found.converted == {CONFIG: ["The byte order mark was removed."]}
    assert (found.trained_on, found.config_fault) == ("tiny", "")


MLX: dict[str, Any] = {
    "fine_tune_type": "lora",
    "iters": 600,
    "lora_parameters": {"rank": 4, "dropout": 0.0, "scale": 20.0},
    "model": "mlx-community/tiny",
    "num_layers": 16,
}
"""As mlx-lm writes it, shortened."""


def of_mlx(**changes: Any) -> dict[str, bytes]:
    tensors = {
        name.removeprefix(PREFIX).removesuffix(".weight").lower(): np.ascontiguousarray(value.T)
        for name, value in safetensors.numpy.load(PLAIN[WEIGHTS]).items()
    }
    return {CONFIG: json.dumps(MLX | changes).encode(), WEIGHTS: safetensors.numpy.save(tensors)}


def test_an_adapter_of_mlx_lm() -> None:
    found, served = looked_at(of_mlx())
    assert same(served[WEIGHTS], PLAIN[WEIGHTS])
    verdict = checked(served)
    assert verdict.config is not None, list(verdict.findings)
    assert {verdict.config.scaling_of(path) for path in verdict.config.targeted} == {20.0}
    assert found.trained_on == "mlx-community/tiny"
    assert found.converted.keys() == {CONFIG, WEIGHTS}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"fine_tune_type": "dora"}, "use_dora"),
        ({"lora_parameters": {"rank": 4}}, "lora_alpha is None"),
        ({"lora_parameters": {"scale": "20"}}, "r is None"),
    ],
)
def test_an_adapter_of_mlx_lm_that_can_not_be_served(changes: dict[str, Any], told: str) -> None:
    _, served = looked_at(of_mlx(**changes))
    assert told in str([finding.message for finding in checked(served).findings])


def test_weights_other_than_announced() -> None:
    with pytest.raises(UploadRefused) as refused:
        looked_at(PLAIN, oid="0" * 64)
    assert refused.value.code == UploadRefusal.OBJECT_DIFFERS
