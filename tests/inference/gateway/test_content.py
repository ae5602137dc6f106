"""Captured content of requests and answers: of which tenants, how much, and what happens beyond the
bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import msgspec
import pytest

from inference.gateway.measuring.content import (
    EACH_BYTES,
    MAX_BYTES,
    Capture,
    KeptContent,
    RequestContents,
)
from inference.interfaces.directory import Grant
from inference.link.accounts import Usage
from inference.link.wire import Delta, Done
from inference.shared_capacity import TENANT_SHARE

pytestmark = pytest.mark.pure

ACME = Grant(1, 1, "acme", frozenset(), None, 1.0, "", keeps_content=True)
GLOBEX = replace(ACME, key_id=2, tenant_id=2, tenant="globex")
DONE = Done("r", Usage(1, 0, 1), "stop")


@pytest.fixture
def ids() -> Iterator[str]:
    return (f"r{number}" for number in count())


def begun(
    contents: RequestContents, body: bytes = b"{}", grant: Grant = ACME, id: str = "r"
) -> Capture:
    capture = contents.begin(id, grant, "chat", body)
    assert capture is not None
    return capture


def ended(contents: RequestContents, capture: Capture, done: Done = DONE) -> KeptContent:
    capture.end(done, "base", 5.0)
    (taken,) = contents.take(10, 1 << 20)
    assert (taken.id, taken.tenant_id, taken.at) == (capture.id, capture.tenant_id, 5.0)
    assert contents.space.total == 0
    return msgspec.json.decode(taken.text, type=KeptContent)


def test_nothing_is_recorded_of_tenants_that_keep_no_content() -> None:
    contents = RequestContents()
    assert contents.begin("r", replace(ACME, keeps_content=False), "chat", b"{}") is None
    assert (contents.dropped, contents.space.total) == (0, 0)


def test_a_lean_answer_is_kept_as_text() -> None:
    contents = RequestContents()
    capture = begun(contents, b'{"a": "\xc3\xa9"}')
    for text in ("Bon", "jour ", "\u00e9"):
        capture.add(Delta("r", text, 1))
    assert ended(contents, capture) == KeptContent(
        "chat", "base", '{"a": "\u00e9"}', "Bonjour \u00e9"
    )


def test_a_full_answer_is_kept_as_chunks_or_whole() -> None:
    contents = RequestContents()
    capture = begun(contents)
    capture.add(Delta("r", "x", 1, [b'{"choices": []}']))
    assert ended(contents, capture).chunks == ['{"choices": []}']
    whole = begun(contents)
    assert ended(contents, whole, msgspec.structs.replace(DONE, response=b"{}")).response == "{}"


def test_what_is_too_long_is_cut_between_characters() -> None:
    contents = RequestContents()
    capture = begun(contents, b"x" + "\u00e9".encode() * MAX_BYTES)
    capture.add(Delta("r", "ab" * MAX_BYTES, 1))
    kept = ended(contents, capture)
    assert kept.cut and len(kept.request.encode()) == MAX_BYTES - 1
    assert len(kept.text) == MAX_BYTES
    chunked = begun(contents)
    for _ in range(3):
        chunked.add(Delta("r", "", 1, [b"1" * (MAX_BYTES // 2)]))
    kept = ended(contents, chunked)
    assert kept.cut and len(kept.chunks) == 2


def test_one_tenant_cannot_fill_the_room_for_content(ids: Iterator[str]) -> None:
    contents = RequestContents(room_bytes=TENANT_SHARE * 10 * EACH_BYTES)
    held = [begun(contents, b"", id=next(ids)) for _ in range(10)]
    assert contents.begin(next(ids), ACME, "chat", b"{}") is None and contents.dropped == 1
    other = begun(contents, b"{}", GLOBEX)
    held[0].add(Delta("r", "no room", 1))
    other.add(Delta("r", "room", 1))
    other.end(DONE, "base", 5.0)
    held[0].end(DONE, "base", 5.0)
    texts = [msgspec.json.decode(one.text, type=KeptContent) for one in contents.take(10, 1 << 20)]
    assert [(one.text, one.cut) for one in texts] == [("room", False), ("", True)]
    for one in held[1:]:
        one.drop()
    assert contents.space.total == 0
    begun(contents, b"", id=next(ids))


def test_tenants_that_fill_it_shut_nobody_else_out(ids: Iterator[str]) -> None:
    contents = RequestContents(room_bytes=TENANT_SHARE * 10 * EACH_BYTES)
    for tenant in range(3, 3 + TENANT_SHARE):
        for _ in range(10):
            begun(contents, b"", replace(ACME, tenant_id=tenant), next(ids))
    begun(contents, b"{}", GLOBEX)
    assert contents.dropped == 0


def test_it_is_taken_in_parts_of_a_size() -> None:
    contents = RequestContents()
    for id in ("a", "b", "c"):
        begun(contents, b"x" * EACH_BYTES, id=id).end(DONE, "base", 5.0)
    assert [one.id for one in contents.take(10, 3 * EACH_BYTES)] == ["a"]
    assert [one.id for one in contents.take(1, 1 << 20)] == ["b"]
    assert [one.id for one in contents.take(10, 1)] == ["c"]  # at least one entry, however large
    assert contents.take(10, 1 << 20) == []
