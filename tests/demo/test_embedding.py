"""The demo's embedding model: its training data, its training, and whether the shipped model finds
sentences that it was not trained on."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from demo import EMBEDDING
from demo.pairs import EXAMINED, PURPOSES, TAUGHT, THINGS, batches, examination
from tests.demo.test_training import digests

MAX_BYTES = 3_000_000


def test_what_is_held_out_is_never_taught_but_its_parts_are() -> None:
    assert not {*TAUGHT} & {*EXAMINED}
    assert len(TAUGHT) + len(EXAMINED) == len(PURPOSES) * len(THINGS)
    for part in (0, 1):
        assert {one[part] for one in EXAMINED} == {one[part] for one in TAUGHT}


def test_sentences_of_a_pair_mean_the_same_in_two_ways() -> None:
    known = {
        one.wording(way): one
        for one in (*TAUGHT, *EXAMINED)
        for way in range(len(PURPOSES[one[0]]))
    }
    for batch in islice(batches("1", 8, 6), 20):
        meanings = [(known[a], known[b]) for a, b in batch]
        assert all(one == other and one in TAUGHT for one, other in meanings)
        assert all(a != b for a, b in batch)
        assert len({one for one, _ in meanings}) == len(batch)
    assert all(known[a] == known[b] and known[a] in EXAMINED for a, b in examination())
    assert len(examination()) == len(EXAMINED) > 50


def test_a_seed_decides_every_file_and_what_it_says_of_itself(tmp_path: Path) -> None:
    from demo import embed
    from tenants.tuning.child.optimising import Schedule

    steps: list[int] = []
    for name in ("a", "b"):
        folder = tmp_path / name
        embed.make(folder, 1, Schedule(2, 1e-3), lambda done, loss: steps.append(done))
    assert steps == [1, 2, 1, 2]
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert (config["dtype"], config["matryoshka_dimensions"]) == ("float32", [32, 64, 128])
    assert len(embed.wrong_answers(tmp_path / "a")) > len(EXAMINED) // 2, "it has hardly begun"


def test_the_shipped_one_finds_every_sentence_that_it_was_never_shown() -> None:
    from demo import embed

    assert embed.wrong_answers(EMBEDDING) == []


def test_the_shipped_one_is_small() -> None:
    assert sum(file.stat().st_size for file in EMBEDDING.rglob("*") if file.is_file()) < MAX_BYTES


@pytest.mark.parametrize("file", ["modules.json", "1_Pooling/config.json"])
def test_sentence_transformers_can_read_it(file: str) -> None:
    assert json.loads((EMBEDDING / file).read_text())
