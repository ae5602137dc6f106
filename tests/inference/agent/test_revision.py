"""The digest of a model's files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from inference.agent.engines import revision
from inference.agent.engines.revision import BLOCK_BYTES, HEAD_BYTES, revision_of

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"[]",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"weights",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def test_the_same_files_have_one_digest_wherever_they_lie(model: Path, tmp_path: Path) -> None:
    found = revision_of(model, model)
    copy = tmp_path / "elsewhere"
    shutil.copytree(model, copy)
    assert revision_of(copy, copy) == found
    assert len(found) == 64


@pytest.mark.parametrize("name", FILES)
def test_any_other_content_has_another(model: Path, name: str) -> None:
    before = revision_of(model, model)
    (model / name).write_bytes(FILES[name] + b" ")
    assert revision_of(model, model) != before
    (model / name).unlink()
    assert revision_of(model, model) != before


def test_what_the_engine_does_not_read_does_not_count(model: Path) -> None:
    before = revision_of(model, model)
    for name in ("README.md", "pytorch_model.bin", "trainer_state.json"):
        (model / name).write_bytes(b"anything")
    assert revision_of(model, model) == before


def test_a_tokenizer_or_template_from_elsewhere_counts(model: Path, tmp_path: Path) -> None:
    other, template = tmp_path / "tokenizer", tmp_path / "template.jinja"
    other.mkdir()
    (other / "tokenizer.json").write_bytes(b"[1]")
    template.write_text("{{ 1 }}")
    found = {
        revision_of(model, model),
        revision_of(model, other),
        revision_of(model, model, template),
    }
    assert len(found) == 3


@pytest.mark.parametrize("at", [0, HEAD_BYTES - 1, -1, "middle", "size"])
def test_large_weights_are_sampled(
    model: Path, monkeypatch: pytest.MonkeyPatch, at: int | str
) -> None:
    monkeypatch.setattr(revision, "WHOLE_BYTES", 1000)
    size, weights = 8 << 20, model / "model.safetensors"
    content = bytearray(size)
    weights.write_bytes(content)
    before = revision_of(model, model)
    if at == "size":
        content += b"\0"
    elif at == "middle":  # retrained weights differ in every block, so the test may change any
        content[size // 2 : size // 2 + 4 * BLOCK_BYTES] = b"\1" * (4 * BLOCK_BYTES)
    else:
        content[int(at)] = 1
    weights.write_bytes(content)
    assert revision_of(model, model) != before


def test_options_that_change_answers_count_where_there_are_any(model: Path) -> None:
    plain = revision_of(model, model)
    assert revision_of(model, model, options={}) == plain
    one = revision_of(model, model, options={"quantization": "fp8", "a": 1})
    assert one == revision_of(model, model, options={"a": 1, "quantization": "fp8"}) != plain
    assert revision_of(model, model, options={"quantization": "awq", "a": 1}) != one
