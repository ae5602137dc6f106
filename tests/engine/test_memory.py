"""How memory is shared out, and how much of it there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inference.agent.engines.memory import (
    LEAST_KV_BYTES,
    DoesNotFit,
    MemoryPlan,
    ModelMemory,
    free_bytes,
    plan,
)
from inference.agent.engines.profile import BadProfile

pytestmark = pytest.mark.pure

GIB = 1 << 30
QWEN = ModelMemory("float32", int(2.4 * GIB), int(0.1 * GIB), 28 * 2 * 8 * 128 * 4, 40960)
"""Qwen3-0.6B: 224 KiB of KV cache for a token."""


def planned(model: ModelMemory = QWEN, free: float = 24, **asked: int) -> MemoryPlan:
    return plan(model, int(free * GIB), 32, asked.get("kv_bytes"), asked.get("context"))


def test_usual_sequences_fit_and_the_context_is_cut_to_the_cache() -> None:
    found = planned()
    assert found.kv_bytes == (16 * 1024 + 32) * QWEN.kv_token
    assert found.context == 16384
    assert found.notice == "Context 16,384 of 40,960 tokens: --kv-bytes 8.8G for all of it."


def test_what_the_sentence_asks_for_is_enough() -> None:
    assert planned(kv_bytes=int(8.8 * GIB)).notice == ""


def test_a_model_without_much_cache_has_its_own_context() -> None:
    tiny = replace(QWEN, kv_token=1000, context=4096)
    assert planned(tiny) == MemoryPlan(LEAST_KV_BYTES, 4096, "")
    assert planned(replace(tiny, kv_token=0)).context == 4096


def test_a_whole_context_is_given_where_it_takes_no_more_than_a_third() -> None:
    small = replace(QWEN, weights=GIB // 2, kv_token=46080, context=32768)
    assert planned(small) == MemoryPlan((32768 + 32) * 46080, 32768, "")
    assert planned(small, free=5).context == 16384


def test_little_memory_means_a_shorter_context() -> None:
    found = planned(free=5)
    assert 1024 <= found.context < 16384 and found.context % 32 == 0
    assert found.kv_bytes <= 5 * GIB - QWEN.weights


def test_a_context_that_was_asked_for_is_given_or_refused() -> None:
    assert planned(context=40960).context == 40960
    assert planned(context=2048).kv_bytes == planned().kv_bytes
    with pytest.raises(DoesNotFit, match="at least 40,960 tokens"):
        planned(context=40960, free=8)


def test_what_does_not_fit_is_summed_up() -> None:
    with pytest.raises(DoesNotFit) as told:
        planned(free=3)
    assert str(told.value) == (
        "the model does not fit: it needs 3.8 GiB of memory as float32 (weights 2.4, adapters 0.1, "
        "KV cache 0.3 for at least 1,024 tokens, the process 1), but may use 2.7 GiB here"
    )


def test_a_cache_that_was_asked_for_is_given_or_refused() -> None:
    assert planned(kv_bytes=64 << 20).context == 256
    with pytest.raises(DoesNotFit, match=r"KV cache 5 for at least 32 tokens"):
        planned(kv_bytes=5 * GIB, free=8)
    with pytest.raises(BadProfile, match=r"kv_bytes is 1048576: a context of 32 tokens needs"):
        planned(kv_bytes=1 << 20)
    with pytest.raises(BadProfile, match=r"a context of 2,048 tokens needs"):
        planned(kv_bytes=64 << 20, context=2048)


# --- What is free --------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[dict[str, str]], int]:
    """`free_bytes` of a machine with 8 GiB available and these files."""

    def look(files: dict[str, str]) -> int:
        for name, text in ({"proc/meminfo": f"MemAvailable: {8 << 20} kB\n"} | files).items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return free_bytes(tmp_path / "proc", tmp_path / "groups")

    return look


def group(folder: str, limit: str, used: int = GIB, cached: int = 0) -> dict[str, str]:
    return {
        f"groups/{folder}memory.max": limit,
        f"groups/{folder}memory.current": str(used),
        f"groups/{folder}memory.stat": f"anon 1\ninactive_file {cached}\n",
    }


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({"proc/self/cgroup": "0::/\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", **group("a/b/", "max")}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", **group("a/b/", str(4 * GIB), cached=GIB)}, 4),
        ({"proc/self/cgroup": "0::/a/b\n", **group("a/", str(3 * GIB))}, 2),
        ({"proc/self/cgroup": "0::/of/the/host\n", **group("", str(3 * GIB))}, 2),
        ({"proc/self/cgroup": "0::/\n", **group("", str(GIB), used=2 * GIB)}, 0),
        (
            {
                "proc/self/cgroup": "9:name=systemd:/\n4:memory,cpu:/a\n",
                "groups/memory/a/memory.limit_in_bytes": str(2 * GIB),
                "groups/memory/a/memory.usage_in_bytes": str(GIB),
                "groups/memory/a/memory.stat": "total_inactive_file 0\n",
                "groups/memory/memory.limit_in_bytes": "9223372036854771712",
                "groups/memory/memory.usage_in_bytes": "1",
                "groups/memory/memory.stat": "",
            },
            1,
        ),
    ],
)
def test_free_memory(
    machine: Callable[[dict[str, str]], int], files: dict[str, str], free: int
) -> None:
    assert machine(files) == free * GIB
