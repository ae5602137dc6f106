"""What a base model is recorded to support, from the kinds of engine that were seen to serve it."""

from __future__ import annotations

import pytest
from django.utils import timezone
from msgspec.structs import replace

from inference.link.engine_info import ModelInfo
from tenants.directory import pools
from tenants.models import BaseModel, PoolRevision
from tests.tenants.making import make_base_of

pytestmark = pytest.mark.django_db


def info(rank: int = 16) -> ModelInfo:
    modules = {"model.layers.0.self_attn.q_proj": (64, 32)}
    return ModelInfo("org/base", 512, 8, rank, 4096, modules, "vllm")


def test_a_base_model_is_noted_once() -> None:
    make_base_of(info())
    first = BaseModel.objects.get()
    make_base_of(info())
    assert BaseModel.objects.get().updated_at == first.updated_at
    make_base_of(info(rank=32))
    stored = BaseModel.objects.get()
    assert stored.pk == first.pk and stored.updated_at > first.updated_at
    assert stored.max_lora_rank == 32
    assert stored.modules == {"model.layers.0.self_attn.q_proj": [64, 32]}


def test_a_base_model_is_the_best_of_its_engines_whichever_connected_last() -> None:
    low = replace(
        info(rank=16), max_model_len=4096, modules={"m.q_proj": (1, 2), "m.k_proj": (3, 4)}
    )
    high = replace(info(rank=64), engine="synthetic", modules={"m.q_proj": (1, 2)})
    for order in ((low, high), (high, low)):
        for one in order:
            make_base_of(one)
        stored = BaseModel.objects.get()
        assert (stored.max_lora_rank, stored.max_model_len) == (64, 4096)
        assert stored.modules == {"m.q_proj": [1, 2], "m.k_proj": [3, 4]}
        assert stored.engine == "synthetic, vllm"
    assert PoolRevision.objects.count() == 2


def test_engines_that_are_gone_count_no_more_once_another_is_seen() -> None:
    for rank in (64, 16):
        make_base_of(info(rank=rank))
    gone = PoolRevision.objects.filter(max_lora_rank=64)
    gone.update(seen_at=timezone.now() - pools.LIVE_FOR)
    assert BaseModel.objects.get().max_lora_rank == 64, "as long as nothing is noted"
    make_base_of(info(rank=16))
    assert BaseModel.objects.get().max_lora_rank == 16
    assert gone.exists()
    gone.update(seen_at=timezone.now() - pools.KEPT_FOR)
    make_base_of(info(rank=16))
    assert not gone.exists()


def test_engines_that_differ_in_capacity_alone_are_of_one_kind() -> None:
    one = info()
    assert replace(one, kv_tokens=9, max_loras=2).pool_digest() == one.pool_digest()
    turned = replace(one, modules={"b": (1, 1), "a": (1, 1)})
    assert turned.pool_digest() == replace(one, modules={"a": (1, 1), "b": (1, 1)}).pool_digest()
    for change in ({"revision": "r"}, {"engine_version": "2"}, {"parsers": {"tool": "hermes"}}):
        assert replace(one, **change).pool_digest() != one.pool_digest()


def test_a_release_keeps_the_digests_that_earlier_ones_stored() -> None:
    modules = {"b": (1, 2), "a": (3, 4)}
    one = ModelInfo(
        "org/base", 512, 8, 16, 4096, modules, "vllm", "r", "2", ["chat"], {"tool": "hermes"}
    )
    stored = "706e194ea7dc6e70b8c1bd077328b1e0a8c08a554d09ce7b06938e30b43895bd"
    assert one.pool_digest() == replace(one, structured_outputs=True).pool_digest() == stored
