"""Which names an adapter may state for the base model it was trained on."""

from __future__ import annotations

import pytest

from tenants.adapters.uploads.base_names import may_be

pytestmark = pytest.mark.pure

CACHE = (
    "/root/.cache/huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12100db370d81485"
)


@pytest.mark.parametrize(
    "trained_on",
    [
        "Qwen/Qwen3-0.6B",
        "Qwen3-0.6B",
        "/models/qwen3-0.6b",
        "/models/Qwen3-0.6B/",
        "./Qwen3_0.6B",
        "C:\\models\\Qwen3-0.6B",
        "somebody-else/Qwen3-0.6B",
        CACHE,
        f"{CACHE}/",
        "",
        "/",
    ],
)
@pytest.mark.parametrize("base", ["Qwen3-0.6B", "Qwen/Qwen3-0.6B"])
def test_names_of_one_model(trained_on: str, base: str) -> None:
    assert may_be(trained_on, base)


@pytest.mark.parametrize(
    "trained_on",
    [
        "Qwen/Qwen3-1.7B",
        "Qwen/Qwen3-0.6B-Base",
        "Qwen/Qwen3-0.6B/checkpoint-100",
        "/home/me/model",
        "模型",
        CACHE.replace("0.6B", "4B"),
    ],
)
def test_names_of_others(trained_on: str) -> None:
    assert not may_be(trained_on, "Qwen3-0.6B")
