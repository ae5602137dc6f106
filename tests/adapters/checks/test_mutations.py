"""Mutated files: no crash, and none is accepted that the safetensors library reads differently."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from tenants.adapters.checks.static import Verdict, check
from tenants.adapters.checks.weights import MAX_VALUE
from tests.adapters.checks.builder import TARGETS, config_bytes, lora

SOUND = lora(targets=("k_proj",), dtype="F32").bytes()
HEADER_END = 8 + int.from_bytes(SOUND[:8], "little")
CONFIG = config_bytes(target_modules=["k_proj"])


@st.composite
def mutated(draw: st.DrawFn, original: bytes, end: int) -> bytes:
    """`original` after a few edits of its first `end` bytes."""
    raw = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(end, len(raw))))
        match draw(st.sampled_from(["flip", "insert", "delete", "truncate", "copy", "extend"])):
            case "flip" if at < len(raw):
                raw[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                raw[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "delete":
                del raw[at : at + draw(st.integers(1, 9))]
            case "truncate":
                del raw[-draw(st.integers(1, 64)) :]
            case "copy":
                raw[at:at] = raw[at : at + draw(st.integers(1, 200))]
            case "extend":
                raw += draw(st.binary(min_size=1, max_size=64))
    return bytes(raw)


def judge(config: bytes, weights: bytes) -> Verdict:
    return check(io.BytesIO(config), io.BytesIO(weights), len(weights), TARGETS)


def _library_reads(raw: bytes) -> dict[str, np.ndarray] | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adapter_model.safetensors"
        path.write_bytes(raw)
        try:
            return safetensors.numpy.load_file(path)
        except (SafetensorError, KeyError):  # KeyError: a dtype that numpy lacks
            return None


def _assert_right(raw: bytes) -> None:
    """If the mutant is accepted, the library must read an adapter of the right shape from it."""
    if not judge(CONFIG, raw).accepted:
        return
    tensors = _library_reads(raw)
    assert tensors is not None
    assert {name: t.shape for name, t in tensors.items()} == {
        name: t.shape for name, t in safetensors.numpy.load(SOUND).items()
    }
    assert all(np.abs(t.astype("f8")).max() <= MAX_VALUE for t in tensors.values())


@given(mutated(SOUND, HEADER_END))
def test_mutated_header(raw: bytes) -> None:
    _assert_right(raw)


@given(mutated(SOUND, len(SOUND)))
def test_mutated_file(raw: bytes) -> None:
    _assert_right(raw)


@given(st.lists(st.tuples(st.integers(0, len(SOUND) - HEADER_END - 1), st.integers(0, 255))))
def test_mutated_values(edits: list[tuple[int, int]]) -> None:
    """Here the verdict is known: all values finite, and lora_B within the limit once scaled."""
    raw = bytearray(SOUND)
    for at, byte in edits:
        raw[HEADER_END + at] = byte
    with np.errstate(invalid="ignore"):
        sound = all(
            bool((np.abs(t.astype("f8")) * (2 if "lora_B" in name else 1) <= MAX_VALUE).all())
            for name, t in safetensors.numpy.load(bytes(raw)).items()
        )
    assert judge(CONFIG, bytes(raw)).accepted == sound


@given(mutated(CONFIG, len(CONFIG)))
def test_mutated_configuration(raw: bytes) -> None:
    found = judge(raw, SOUND)
    if found.accepted:
        assert found.config is not None
        assert found.config.rank == 4


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_random_bytes_are_not_accepted(config: bytes, weights: bytes) -> None:
    assert not judge(config, weights).accepted
