"""Commits of pushes through the hub API: valid ones, and every kind of invalid one."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.content import CONFIG, WEIGHTS
from tenants.adapters.checks import commits
from tenants.adapters.checks.commits import MAX_LINES, SHORT_BYTES, CommitContents
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused

pytestmark = pytest.mark.pure
HEADER = {"key": "header", "value": {"summary": "Upload model", "description": ""}}
LONG = bytes(range(256)) * 8192


def file(path: str, data: bytes, **changes: Any) -> dict[str, Any]:
    """A file as huggingface_hub writes it: the path comes after the content."""
    text = base64.b64encode(data).decode()
    return {"key": "file", "value": {"content": text, "path": path, "encoding": "base64"} | changes}


def large(path: str = WEIGHTS, oid: str = "a" * 64) -> dict[str, Any]:
    return {"key": "lfsFile", "value": {"path": path, "algo": "sha256", "oid": oid, "size": 9}}


def written(*operations: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in operations)


def unpack(commit: bytes, max_bytes: int = 1 << 30) -> tuple[bytes, bytes, str]:
    """The two unpacked files, and the id of the large object that the commit names."""
    config, weights = io.BytesIO(), io.BytesIO()
    found = commits.unpack(io.BytesIO(commit), max_bytes, {CONFIG: config, WEIGHTS: weights})
    return config.getvalue(), weights.getvalue(), found.oid


def contents(*operations: dict[str, Any]) -> CommitContents:
    targets = {CONFIG: io.BytesIO(), WEIGHTS: io.BytesIO()}
    return commits.unpack(io.BytesIO(written(*operations)), 1 << 30, targets)


def refused(commit: bytes, **options: Any) -> tuple[UploadRefusal, str]:
    with pytest.raises(UploadRefused) as refusal:
        unpack(commit, **options)
    return refusal.value.code, refusal.value.message


@pytest.mark.parametrize("weights", [b"", b"short", LONG, LONG[:-1], LONG[:-2]])
def test_both_files_are_found_whatever_their_size(weights: bytes) -> None:
    commit = written(HEADER, file(WEIGHTS, weights), file(CONFIG, b"{}"))
    assert unpack(commit) == (b"{}", weights, "")
    assert unpack(commit.rstrip(b"\n")) == (b"{}", weights, "")


def test_a_path_may_come_before_a_long_content() -> None:
    content = file(WEIGHTS, LONG)["value"]["content"]
    value = {"path": WEIGHTS, "encoding": "base64", "content": content}
    commit = written(HEADER, file(CONFIG, b"{}"), {"key": "file", "value": value})
    assert unpack(commit)[1] == LONG


def test_other_files_of_a_commit_are_skipped() -> None:
    others = [file("README.md", b"# It"), file("tokenizer.json", LONG), file("a/" + CONFIG, b"no")]
    gone = [{"key": "deletedFile", "value": {"path": CONFIG}},
            {"key": "deletedFolder", "value": {"path": "old/"}}]  # fmt: skip
    commit = written(HEADER, *others, *gone, file(WEIGHTS, LONG), *others, file(CONFIG, b"{}"))
    assert unpack(commit, max_bytes=2 * len(LONG)) == (b"{}", LONG, "")


def test_what_a_commit_leaves_out_is_named() -> None:
    found = contents(HEADER, file("README.md", b"# It"), *SOUND, file("a/" + CONFIG, b"no"))
    assert found == CommitContents("", "", [], ["README.md", "a/" + CONFIG])


def test_a_commit_may_leave_one_file_as_it_was_and_names_its_parent() -> None:
    header = {"key": "header", "value": {"summary": "", "parentCommit": "a" * 40}}
    readme = file("README.md", b"# It")
    found = contents(header, file(CONFIG, b"{}"), readme)
    assert found == CommitContents("", "a" * 40, [WEIGHTS], ["README.md"])
    assert contents(large(oid="0f" * 32)) == CommitContents("0f" * 32, "", [CONFIG], [])


def test_an_adapter_in_a_folder_says_where_it_must_be() -> None:
    commit = written(HEADER, file("x/" + CONFIG, b"{}"), file("x/" + WEIGHTS, b""))
    code, message = refused(commit)
    assert code == UploadRefusal.ARCHIVE_PATH_REFUSED
    assert "at the repository's top, but is 'x/adapter_config.json'" in message


def test_weights_may_be_a_large_object_that_was_sent_before() -> None:
    commit = written(HEADER, file(CONFIG, b"{}"), large(oid="0f" * 32), large("a.gguf", "b" * 64))
    assert unpack(commit) == (b"{}", b"", "0f" * 32)


SOUND = (file(CONFIG, b"{}"), file(WEIGHTS, LONG))
INVALID = {
    "no JSON": b"{\n",
    "a list": b"[]\n",
    "no key": written({"value": {}}),
    "no value": written({"key": "file"}),
    "a value that is none": written({"key": "header", "value": 1}),
    "another operation": written({"key": "lfsLink", "value": {"path": WEIGHTS}}),
    "no path": written({"key": "file", "value": {"content": "", "encoding": "base64"}}),
    "no content": written({"key": "file", "value": {"path": CONFIG, "encoding": "base64"}}),
    "another encoding": written(file(CONFIG, b"", encoding="utf-8")),
    "another encoding of a long one": written(file(WEIGHTS, LONG, encoding="utf-8")),
    "no Base64": written(file(CONFIG, b"", content="a?")),
    "letters of others": written(file(CONFIG, b"", content="aä==")),
    "padding within": written(file(WEIGHTS, b"", content="QQ==" * SHORT_BYTES)),
    "a long configuration": written(file(CONFIG, LONG)),
    "a cut content": written(file(WEIGHTS, LONG))[: SHORT_BYTES + 1000],
    "a line break within a content": written(file(WEIGHTS, b"", content="A" * SHORT_BYTES)).replace(
        b"A" * SHORT_BYTES, b"A" * SHORT_BYTES + b"\nAAAA"
    ),
    "another long text": written({"key": "header", "value": {"summary": "A" * SHORT_BYTES}}),
    "a long content of a header": written({"key": "header", "value": {"content": "A" * 999_999}}),
    "a content within": written(
        {"key": "file", "value": {"path": WEIGHTS, "a": {"content": "A" * 999_999}}}
    ),
    "a long rest": written(file("x" * SHORT_BYTES, LONG)),
    "a key twice": written(file(WEIGHTS, LONG)).replace(b'"path"', b'"path": "a", "path"'),
    "an object that has no name": written(large(oid="A" * 64)),
    "a configuration as an object": written(large(CONFIG)),
    "too many lines": written(*[HEADER] * (MAX_LINES + 1)),
    "deep": b'{"key":' * 100_000 + b"\n",
}


@pytest.mark.parametrize("commit", INVALID.values(), ids=INVALID.keys())
def test_a_commit_of_another_form(commit: bytes) -> None:
    code, message = refused(commit + written(*SOUND))
    assert code == UploadRefusal.COMMIT_INVALID
    assert len(message) < 500


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([], UploadRefusal.COMMIT_INVALID),
        ([HEADER], UploadRefusal.NOTHING_TO_KEEP),
        ([HEADER, file("README.md", b"")], UploadRefusal.NOTHING_TO_KEEP),
        ([file(CONFIG, b"{}"), file("adapter_model.bin", b"")], UploadRefusal.PICKLE_REFUSED),
        ([file(CONFIG, b"{}"), file("a/" + WEIGHTS, b"")], UploadRefusal.ARCHIVE_PATH_REFUSED),
        ([*SOUND, file(CONFIG, b"{}")], UploadRefusal.FILE_DUPLICATE),
        ([*SOUND, file(WEIGHTS, LONG)], UploadRefusal.FILE_DUPLICATE),
        ([*SOUND, large()], UploadRefusal.FILE_DUPLICATE),
    ],
)
def test_each_file_is_there_once(operations: list[dict[str, Any]], code: UploadRefusal) -> None:
    assert refused(written(*operations))[0] == code


@pytest.mark.parametrize("weights", [b"w" * 1000, LONG])
def test_files_are_bounded(weights: bytes) -> None:
    commit = written(HEADER, file(WEIGHTS, weights), file(CONFIG, b"{}"))
    assert unpack(commit, max_bytes=len(weights) + 2)[1] == weights
    assert refused(commit, max_bytes=len(weights) + 1)[0] == UploadRefusal.PAYLOAD_TOO_LARGE


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_damage_is_never_anything_but_a_refusal(noise: bytes, at: int) -> None:
    commit = written(HEADER, file(CONFIG, b"{}"), file(WEIGHTS, LONG[:999]))
    try:
        unpack(commit[:at] + noise + commit[at + len(noise) :])
    except UploadRefused as refusal:
        assert refusal.message
