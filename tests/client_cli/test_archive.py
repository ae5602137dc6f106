"""An adapter's archive, which is generated while it is read."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorikeet.failures import Failure
from lorikeet.transfer.archive import FILES, Archive

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapter")
    (made / FILES[0]).write_bytes(b"{}")
    (made / FILES[1]).write_bytes(bytes(range(256)) * 20)
    return made


def whole(archive: Archive) -> bytes:
    return b"".join(archive.read(0, archive.size))


def test_it_is_a_tar_of_the_two_files(folder: Path) -> None:
    archive = Archive(folder)
    data = whole(archive)
    assert len(data) == archive.size
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as read:
        assert read.getnames() == list(FILES)
        for name in FILES:
            member = read.extractfile(name)
            assert member and member.read() == (folder / name).read_bytes()


@pytest.mark.parametrize(
    "weights",
    [
        ["adapter_model-00001-of-00002.safetensors", "adapter_model-00002-of-00002.safetensors"],
        ["adapters.safetensors"],
    ],
)
def test_weights_in_shards_or_of_mlx_lm(tmp_path: Path, weights: list[str]) -> None:
    for name in (FILES[0], *weights, "README.md", "0000100_adapters.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    with tarfile.open(fileobj=io.BytesIO(whole(Archive(tmp_path)))) as read:
        assert read.getnames() == [FILES[0], *weights]


@given(start=st.integers(0, 9000), count=st.integers(0, 9000), chunk=st.integers(1, 700))
def test_any_part_of_it_is_the_same_bytes(folder: Path, start: int, count: int, chunk: int) -> None:
    archive = Archive(folder)
    part = b"".join(archive.read(start, count, chunk))
    assert part == whole(archive)[start : start + count]


def test_it_is_another_one_once_a_file_changed(folder: Path, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    before = Archive(tmp_path).fingerprint
    assert Archive(tmp_path).fingerprint == before
    os.utime(tmp_path / FILES[1], ns=(1, 1))
    assert Archive(tmp_path).fingerprint != before


def test_an_archive_is_sent_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"any bytes")
    archive = Archive(tmp_path / "a.zip")
    assert (archive.name, whole(archive)) == ("a.zip", b"any bytes")


def test_what_is_no_adapter_is_told_so(tmp_path: Path) -> None:
    (tmp_path / FILES[0]).write_bytes(b"{}")
    (tmp_path / "adapter_model.bin").write_bytes(b"P")
    with pytest.raises(Failure, match="Save it as safetensors"):
        Archive(tmp_path)
    for missing in (tmp_path / "nothing", tmp_path / FILES[0]):
        with pytest.raises(Failure, match="neither a folder"):
            Archive(missing)


def test_a_file_that_shrinks_meanwhile_ends_it(folder: Path, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    archive = Archive(tmp_path)
    (tmp_path / FILES[1]).write_bytes(b"")
    with pytest.raises(Failure, match="became shorter"):
        whole(archive)
