"""Whose batch it is, and what names a line."""

from __future__ import annotations

import msgspec
import pytest

from inference.gateway.lines.frames import Open
from inference.gateway.lines.seals import holds, line_id, seal

pytestmark = pytest.mark.pure

BATCH = Open("batch_1", 7, 1795370511.25, "chat", "")


def test_a_seal_is_of_one_batch_of_one_key_alone() -> None:
    given = seal("secret", BATCH)
    assert holds("secret", BATCH, given)
    assert not holds("another", BATCH, given)
    for changed in (
        {"batch": "batch_2"}, {"key_id": 8}, {"created_at": 1795370511.5}, {"operation": "echo"},
    ):  # fmt: skip
        assert not holds("secret", msgspec.structs.replace(BATCH, **changed), given), changed
    assert not holds("secret", BATCH, "") and not holds("secret", BATCH, "\N{SNOWMAN}")


def test_a_lines_id_is_always_the_same_and_begins_with_the_batchs_time() -> None:
    ids = {line_id("batch_1", number, 1795370511.25) for number in range(1, 100)}
    assert len(ids) == 99 and {len(id) for id in ids} == {32}
    assert {id[:12] for id in ids} == {f"{1795370511250:012x}"}
    assert line_id("batch_1", 1, 1795370511.25) in ids
    assert line_id("batch_2", 1, 1795370511.25) not in ids
