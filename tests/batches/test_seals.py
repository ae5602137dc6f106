"""Seals, which bind a batch to its key, and the ids of a batch's lines."""

from __future__ import annotations

import msgspec
import pytest

from inference.gateway.lines.frames import OpenBatch
from inference.gateway.lines.seals import (
    background_id,
    batch_of,
    holds,
    line_id,
    new_batch_id,
    number_of,
    seal,
)
from inference.ids import new_id

pytestmark = pytest.mark.pure

BATCH = OpenBatch("batch_1", 7, 1795370511.25, "chat", "")


def test_a_seal_is_valid_for_one_batch_and_one_key() -> None:
    given = seal("secret", BATCH)
    assert holds("secret", BATCH, given)
    assert not holds("another", BATCH, given)
    for changed in (
        {"batch": "batch_2"}, {"key_id": 8}, {"created_at": 1795370511.5}, {"operation": "echo"},
    ):  # fmt: skip
        assert not holds("secret", msgspec.structs.replace(BATCH, **changed), given), changed
    assert not holds("secret", BATCH, "") and not holds("secret", BATCH, "\N{SNOWMAN}")


def test_a_lines_id_is_that_of_its_batch_and_its_number() -> None:
    one, other = new_batch_id(), new_batch_id()
    ids = [line_id(batch, number) for batch in (one, other) for number in (1, 2, 50_000)]
    assert len({*ids}) == 6 and {len(id) for id in ids} == {len(new_id())}
    assert {*map(batch_of, ids)} == {one, other}
    assert [*map(number_of, ids[:3])] == [1, 2, 50_000]
    response = background_id(before := new_id())
    assert len(line_id(response, 1)) == len(before) and line_id(response, 1)[:24] == before[:24]
    before = new_id()
    assert before[:12] <= new_batch_id()[6:18] <= new_id()[:12], "ids sort by time"
