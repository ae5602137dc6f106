"""Archives: valid ones are unpacked, every kind of hostile one is refused with its own code."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from inference.content import CONFIG, FILES, WEIGHTS
from tenants.adapters.checks.archives import MAX_MEMBERS, MAX_READ_BYTES, MAX_TAR_HEADER_BYTES
from tenants.adapters.checks.contents import unpack as unpack_to
from tenants.adapters.checks.static import check
from tenants.adapters.uploads.content import UploadContents
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused
from tenants.adapters.uploads.selection import MAX_LEFT_OUT, is_archive_name, select
from tests.adapters.checks.builder import TARGETS, Weights, config_bytes, looked_at, lora
from tests.adapters.checks.test_mutations import mutated

CONTENT = {CONFIG: config_bytes(), WEIGHTS: lora().bytes()}
LIMIT = 64 << 20


def make_tar(
    members: list[tuple[str, bytes]] | None = None,
    edit: Callable[[tarfile.TarInfo], None] = lambda info: None,
    mode: str = "w:",
) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members if members is not None else list(CONTENT.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mtime = 1.5  # forces an extended header
            edit(info)
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def make_zip(
    members: list[tuple[str, bytes]] | None = None,
    edit: Callable[[zipfile.ZipInfo], None] = lambda info: None,
    compression: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in members if members is not None else list(CONTENT.items()):
            info = zipfile.ZipInfo(name)
            info.compress_type = compression
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            edit(info)
            archive.writestr(info, data)
    return target.getvalue()


def unpacked(raw: bytes, limit: int = LIMIT) -> tuple[UploadContents, dict[str, bytes]]:
    """What is found of the archive's files, and these files."""
    targets = {name: io.BytesIO() for name in FILES}
    left_out = unpack_to(io.BytesIO(raw), limit, targets, io.BytesIO())
    files = {name: target.getvalue() for name, target in targets.items()}
    return replace(looked_at(files)[0], left_out=left_out), files


def unpack(raw: bytes, limit: int = LIMIT) -> dict[str, bytes]:
    return unpacked(raw, limit)[1]


def in_folder(folder: str) -> list[tuple[str, bytes]]:
    return [(folder + name, data) for name, data in CONTENT.items()]


# --- Valid archives ------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["", "./", "my-adapter/", "./my-adapter/"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_sound_archive(kind: str, folder: str) -> None:
    raw = (make_tar if kind == "tar" else make_zip)(in_folder(folder))
    assert unpack(raw) == CONTENT


def test_stored_zip_with_a_folder_entry() -> None:
    members = [("a/", b""), *in_folder("a/")]
    raw = make_zip(members, compression=zipfile.ZIP_STORED)
    assert unpack(raw) == CONTENT


def test_tar_made_from_a_folder(tmp_path: Path) -> None:
    for name, data in CONTENT.items():
        (tmp_path / name).write_bytes(data)
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.add(tmp_path, arcname="adapter")
    assert unpack(target.getvalue()) == CONTENT


def test_what_is_found_of_the_files() -> None:
    contents, _ = unpacked(make_zip())
    config, weights = (hashlib.sha256(data).hexdigest() for data in CONTENT.values())
    size = sum(len(data) for data in CONTENT.values())
    assert contents == UploadContents(config, weights, size, trained_on="tiny")


TRAINED = [
    ("support/README.md", b"---"),
    ("support/tokenizer.json", b"{}"),
    ("support/chat_template.jinja", b""),
    ("support/training_args.bin", b"pickle"),
    ("support/trainer_state.json", b"{}"),
    ("support/.DS_Store", b""),
    ("__MACOSX/support/._" + WEIGHTS, b"fork"),
    ("__MACOSX/support/._" + CONFIG, b"fork"),
    ("support/._" + CONFIG, b"fork"),
    ("support/checkpoint-50/optimizer.pt", b"pickle"),
    ("support/checkpoint-50/rng_state.pth", b"pickle"),
    ("support/checkpoint-50/" + CONFIG, b"{}"),
    ("support/checkpoint-50/" + WEIGHTS, b"other weights"),
]
"""What `Trainer` leaves beside an adapter, zipped by a Mac."""


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_what_a_trainer_writes_is_left_out_and_named(kind: str) -> None:
    members = [*TRAINED, *in_folder("support/")]
    raw = make_zip(members) if kind == "zip" else make_tar(members)
    contents, files = unpacked(gzip.compress(raw) if kind == "tar.gz" else raw)
    assert files == CONTENT
    assert contents.left_out == [path for path, _ in TRAINED]


def test_only_so_many_names_are_told() -> None:
    selection = select([CONFIG, WEIGHTS, *(f"{n}\x1b.txt" for n in range(MAX_LEFT_OUT + 20))])
    assert selection.left_out_names()[-2:] == [f"{MAX_LEFT_OUT - 1}\\x1b.txt", "and 20 more"]


@pytest.mark.parametrize(
    ("paths", "config"),
    [
        (["ADAPTER_CONFIG.JSON", "Adapter_Model.safetensors"], "ADAPTER_CONFIG.JSON"),
        (["outputs/x/" + CONFIG, "outputs/x/" + WEIGHTS], "outputs/x/" + CONFIG),
        (["checkpoint-9/" + CONFIG, "checkpoint-9/" + WEIGHTS], "checkpoint-9/" + CONFIG),
        (["a/" + CONFIG, CONFIG, WEIGHTS], CONFIG),
    ],
)
def test_the_adapter_is_found_wherever_it_is(paths: list[str], config: str) -> None:
    assert select(paths).config == config


def test_two_adapters_are_named() -> None:
    with pytest.raises(UploadRefused, match="2 adapters, in its top folder, 'pirate'"):
        select([CONFIG, WEIGHTS, "pirate/" + CONFIG, "pirate/" + WEIGHTS])


def test_an_archive_is_known_by_its_content_not_its_name() -> None:
    for raw in (
        make_zip(),
        make_tar(),
        make_tar(mode="w:gz"),
        gzip.compress(make_tar()) + bytes(9),
    ):
        assert unpack(raw) == CONTENT
    assert is_archive_name("a.TGZ") and not is_archive_name("a.tar.bz2")


def test_shards_are_put_together() -> None:
    whole = lora()
    names = list(whole.entries)
    shards = []
    for some in (names[:3], names[3:]):
        shard = Weights(metadata={"format": "pt"})
        for name in some:
            shard.entries[name], shard.data[name] = dict(whole.entries[name]), whole.data[name]
        shards.append(shard.bytes())
    members = [
        (CONFIG, CONTENT[CONFIG]),
        ("adapter_model-00002-of-00002.safetensors", shards[1]),
        ("adapter_model-00001-of-00002.safetensors", shards[0]),
        ("adapter_model.safetensors.index.json", b"{}"),
    ]
    contents, files = unpacked(make_zip(members))
    joined, sent = safetensors.numpy.load(files[WEIGHTS]), safetensors.numpy.load(whole.bytes())
    assert joined.keys() == sent.keys()
    assert all((joined[name] == sent[name]).all() for name in sent)
    assert contents.left_out == ["adapter_model.safetensors.index.json"]
    weights = files[WEIGHTS]
    assert check(io.BytesIO(files[CONFIG]), io.BytesIO(weights), len(weights), TARGETS).accepted


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (b'{"r": 4,}', "Expecting property name"),
        (b'{"lora_alpha": Infinity}', "Infinity is not valid JSON"),
        ('{"r": 4}'.encode("utf-16"), "not valid UTF-8 at byte 0"),
        (b"[]", "it is not an object"),
    ],
)
def test_what_is_wrong_with_the_configuration_is_said(config: bytes, told: str) -> None:
    contents, _ = unpacked(make_tar([(CONFIG, config), (WEIGHTS, CONTENT[WEIGHTS])]))
    assert told in contents.config_fault


# --- Hostile archives ----------------------------------------------------------------------------


def _link(kind: bytes) -> Callable[[tarfile.TarInfo], None]:
    def edit(info: tarfile.TarInfo) -> None:
        if info.name == WEIGHTS:
            info.type, info.linkname, info.size = kind, "/etc/passwd", 0

    return edit


def _mode(kind: int) -> Callable[[zipfile.ZipInfo], None]:
    def edit(info: zipfile.ZipInfo) -> None:
        info.external_attr = (kind | 0o777) << 16

    return edit


def _encrypted() -> bytes:
    """A zip marked as encrypted. Local headers and directory have the flag at different offsets."""
    raw = bytearray(make_zip())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = raw.find(signature)
        while at >= 0:
            raw[at + offset] |= 1
            at = raw.find(signature, at + 1)
    return bytes(raw)


def _zip_twice() -> bytes:
    with pytest.warns(UserWarning, match="Duplicate name"):
        return make_zip([*CONTENT.items(), (WEIGHTS, b"other")])


def _claiming(size: int) -> bytes:
    """A zip whose directory claims another inflated size than its data has."""
    raw = bytearray(make_zip())
    at = raw.rfind(b"PK\x01\x02")
    raw[at + 24 : at + 28] = struct.pack("<I", size)
    return bytes(raw)


def _long_name_tar() -> bytes:
    """A tar with a GNU long name twice as long as one read may be, which Python's reader would
    read into memory at once."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, MAX_READ_BYTES * 2
    return info.tobuf() + b"a" * info.size + make_tar()


def _pax_tar(size: int) -> bytes:
    """A tar whose extended header takes Python before 3.11.10 quadratic time: CVE-2024-6232."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, size
    return info.tobuf() + (b"1" * size).ljust(-(-size // 512) * 512, b"\0") + make_tar()


def _cut_tar() -> bytes:
    """A tar that ends within the weights."""
    raw = make_tar()
    return raw[: raw.index(CONTENT[WEIGHTS]) + 100]


def _sparse() -> bytes:
    def edit(info: tarfile.TarInfo) -> None:
        info.type = tarfile.GNUTYPE_SPARSE

    return make_tar(edit=edit)


def _numbers(**fields: str) -> Callable[[tarfile.TarInfo], None]:
    """Sets fields of the extended header, which take precedence over the plain one's."""

    def edit(info: tarfile.TarInfo) -> None:
        info.pax_headers = fields

    return edit


def _huge_member(size: int) -> bytes:
    """A tar whose last member claims to have `size` bytes."""
    first, last = tarfile.TarInfo(CONFIG), tarfile.TarInfo(WEIGHTS)
    first.size, last.size = len(CONTENT[CONFIG]), size
    padding = bytes(-first.size % tarfile.BLOCKSIZE)
    headers = [info.tobuf(tarfile.GNU_FORMAT) for info in (first, last)]
    return headers[0] + CONTENT[CONFIG] + padding + headers[1] + bytes(1024)


CONFIG_ONLY = [(CONFIG, CONTENT[CONFIG])]


def _sharded(first: bytes, second: bytes) -> Callable[[], bytes]:
    names = ("adapter_model-00001-of-00002.safetensors", "adapter_model-00002-of-00002.safetensors")
    return lambda: make_zip([*CONFIG_ONLY, (names[0], first), (names[1], second)])


HOSTILE: dict[str, tuple[Callable[[], bytes], UploadRefusal]] = {
    "tar symlink": (
        lambda: make_tar(edit=_link(tarfile.SYMTYPE)),
        UploadRefusal.ARCHIVE_MEMBER_REFUSED,
    ),
    "tar hard link": (
        lambda: make_tar(edit=_link(tarfile.LNKTYPE)),
        UploadRefusal.ARCHIVE_MEMBER_REFUSED,
    ),
    "tar device": (
        lambda: make_tar(edit=_link(tarfile.CHRTYPE)),
        UploadRefusal.ARCHIVE_MEMBER_REFUSED,
    ),
    "tar block device": (
        lambda: make_tar(edit=_link(tarfile.BLKTYPE)),
        UploadRefusal.ARCHIVE_MEMBER_REFUSED,
    ),
    "tar fifo": (
        lambda: make_tar(edit=_link(tarfile.FIFOTYPE)),
        UploadRefusal.ARCHIVE_MEMBER_REFUSED,
    ),
    "tar sparse": (_sparse, UploadRefusal.ARCHIVE_MEMBER_REFUSED),
    "tar absolute": (lambda: make_tar(in_folder("/")), UploadRefusal.ARCHIVE_PATH_REFUSED),
    "tar parent": (lambda: make_tar(in_folder("../")), UploadRefusal.ARCHIVE_PATH_REFUSED),
    "tar parent inside": (
        lambda: make_tar(in_folder("a/../../")),
        UploadRefusal.ARCHIVE_PATH_REFUSED,
    ),
    "tar two adapters": (
        lambda: make_tar([*in_folder("a/b/"), *in_folder("a/c/")]),
        UploadRefusal.ADAPTERS_SEVERAL,
    ),
    "tar two folders": (
        lambda: make_tar([("a/" + CONFIG, b"{}"), ("b/" + WEIGHTS, b"")]),
        UploadRefusal.ARCHIVE_PATH_REFUSED,
    ),
    "tar top and folder": (
        lambda: make_tar([(CONFIG, b"{}"), ("b/" + WEIGHTS, b"")]),
        UploadRefusal.ARCHIVE_PATH_REFUSED,
    ),
    "tar extra that leaves the folder": (
        lambda: make_tar([*CONTENT.items(), ("../README.md", b"hello")]),
        UploadRefusal.ARCHIVE_PATH_REFUSED,
    ),
    "tar nested": (
        lambda: make_tar([("adapter.zip", make_zip())]),
        UploadRefusal.ARCHIVE_UNSUPPORTED,
    ),
    "tar crowded": (
        lambda: make_tar([(f"{n}", b"") for n in range(MAX_MEMBERS + 1)]),
        UploadRefusal.ARCHIVE_CROWDED,
    ),
    "tar pickle": (
        lambda: make_tar([*CONFIG_ONLY, ("adapter_model.bin", b"x")]),
        UploadRefusal.PICKLE_REFUSED,
    ),
    "tar missing": (lambda: make_tar(CONFIG_ONLY), UploadRefusal.FILE_MISSING),
    "tar twice": (
        lambda: make_tar([*CONTENT.items(), (CONFIG, b"{}")]),
        UploadRefusal.FILE_DUPLICATE,
    ),
    "tar compressed, of links": (
        lambda: gzip.compress(make_tar(edit=_link(tarfile.SYMTYPE))),
        UploadRefusal.ARCHIVE_MEMBER_REFUSED,
    ),
    "tar compressed and cut off": (
        lambda: make_tar(mode="w:gz")[:-20],
        UploadRefusal.ARCHIVE_INVALID,
    ),
    "tar compressed and damaged": (
        lambda: make_tar(mode="w:gz")[:100] + bytes(100),
        UploadRefusal.ARCHIVE_INVALID,
    ),
    "tar compressed, a bomb": (
        lambda: gzip.compress(bytes(64 << 20)),
        UploadRefusal.ARCHIVE_BOMB,
    ),
    "tar compressed, a bomb of many members": (
        lambda: gzip.compress(bytes(1 << 20)) * 100,
        UploadRefusal.ARCHIVE_BOMB,
    ),
    "tar truncated": (_cut_tar, UploadRefusal.ARCHIVE_INVALID),
    "tar empty": (lambda: b"", UploadRefusal.ARCHIVE_INVALID),
    "tar with a huge name": (_long_name_tar, UploadRefusal.ARCHIVE_INVALID),
    "tar with a huge pax header": (
        lambda: _pax_tar(125_000),
        UploadRefusal.ARCHIVE_INVALID,
    ),
    "tar with a large pax header": (
        lambda: _pax_tar(9 << 10),
        UploadRefusal.ARCHIVE_INVALID,
    ),
    "tar of 2^62 bytes": (lambda: _huge_member(1 << 62), UploadRefusal.ARCHIVE_INVALID),
    "tar of 2^50 bytes": (lambda: _huge_member(1 << 50), UploadRefusal.ARCHIVE_INVALID),
    "tar of negative size": (
        lambda: _huge_member(-(1 << 62)),
        UploadRefusal.ARCHIVE_INVALID,
    ),
    "tar with a size of 2^62": (
        lambda: make_tar(edit=_numbers(size=str(1 << 62))),
        UploadRefusal.ARCHIVE_INVALID,
    ),
    "tar with a size of 400 digits": (
        lambda: make_tar(edit=_numbers(size="9" * 400)),
        UploadRefusal.ARCHIVE_INVALID,
    ),
    "tar with a sparse map of nonsense": (
        lambda: make_tar(edit=_numbers(**{"GNU.sparse.map": "1,x", "GNU.sparse.size": "-1"})),
        UploadRefusal.ARCHIVE_INVALID,
    ),
    "zip symlink": (
        lambda: make_zip(edit=_mode(stat.S_IFLNK)),
        UploadRefusal.ARCHIVE_MEMBER_REFUSED,
    ),
    "zip device": (
        lambda: make_zip(edit=_mode(stat.S_IFCHR)),
        UploadRefusal.ARCHIVE_MEMBER_REFUSED,
    ),
    "zip absolute": (lambda: make_zip(in_folder("/")), UploadRefusal.ARCHIVE_PATH_REFUSED),
    "zip parent": (lambda: make_zip(in_folder("../")), UploadRefusal.ARCHIVE_PATH_REFUSED),
    "zip backslash": (
        lambda: make_zip(in_folder("..\\")),
        UploadRefusal.ARCHIVE_PATH_REFUSED,
    ),
    "zip drive": (lambda: make_zip(in_folder("C:/")), UploadRefusal.ARCHIVE_PATH_REFUSED),
    "zip bomb": (
        lambda: make_zip([*CONFIG_ONLY, (WEIGHTS, bytes(32 << 20))]),
        UploadRefusal.ARCHIVE_BOMB,
    ),
    "zip over the limit": (
        lambda: make_zip([*CONFIG_ONLY, (WEIGHTS, bytes(LIMIT + 1))], compression=0),
        UploadRefusal.PAYLOAD_TOO_LARGE,
    ),
    "zip that claims more": (lambda: _claiming(2000), UploadRefusal.ARCHIVE_INVALID),
    "zip that claims less": (lambda: _claiming(100), UploadRefusal.ARCHIVE_INVALID),
    "zip encrypted": (_encrypted, UploadRefusal.ARCHIVE_ENCRYPTED),
    "zip by bzip2": (
        lambda: make_zip(compression=zipfile.ZIP_BZIP2),
        UploadRefusal.ARCHIVE_UNSUPPORTED,
    ),
    "zip twice": (_zip_twice, UploadRefusal.FILE_DUPLICATE),
    "zip nested": (
        lambda: make_zip([("inner.tar", make_tar())]),
        UploadRefusal.ARCHIVE_UNSUPPORTED,
    ),
    "zip missing": (lambda: make_zip(CONFIG_ONLY), UploadRefusal.FILE_MISSING),
    "zip empty": (lambda: make_zip([]), UploadRefusal.FILE_MISSING),
    "zip with data after": (lambda: make_zip() + b"x", UploadRefusal.ARCHIVE_INVALID),
    "zip with data before": (lambda: b"x" + make_zip(), UploadRefusal.ARCHIVE_INVALID),
    "zip truncated": (lambda: make_zip()[:-30], UploadRefusal.ARCHIVE_INVALID),
    "zip with a huge directory": (
        lambda: make_zip([(f"{n:0400}", b"") for n in range(1500)]),
        UploadRefusal.ARCHIVE_INVALID,
    ),
    "shards with one tensor twice": (
        _sharded(CONTENT[WEIGHTS], CONTENT[WEIGHTS]),
        UploadRefusal.SHARDS_INVALID,
    ),
    "a shard that is empty": (_sharded(CONTENT[WEIGHTS], b""), UploadRefusal.SHARDS_INVALID),
    "a shard with a header beyond its end": (
        _sharded(CONTENT[WEIGHTS], (1 << 40).to_bytes(8, "little") + b"{}"),
        UploadRefusal.SHARDS_INVALID,
    ),
    "a shard without JSON": (
        _sharded(CONTENT[WEIGHTS], (2).to_bytes(8, "little") + b"{]"),
        UploadRefusal.SHARDS_INVALID,
    ),
    "a shard whose entry is a number": (
        _sharded(CONTENT[WEIGHTS], (9).to_bytes(8, "little") + b'{"a": 12}'),
        UploadRefusal.SHARDS_INVALID,
    ),
    "a Git LFS pointer": (
        lambda: make_zip([*CONFIG_ONLY, (WEIGHTS, b"version https://git-lfs.github.com/spec/v1")]),
        UploadRefusal.WEIGHTS_NOT_SAFETENSORS,
    ),
    "a web page": (
        lambda: make_zip([*CONFIG_ONLY, (WEIGHTS, b"\n<!DOCTYPE html><html>")]),
        UploadRefusal.WEIGHTS_NOT_SAFETENSORS,
    ),
    "zip that is a gzip": (lambda: gzip.compress(b"x"), UploadRefusal.ARCHIVE_INVALID),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archive(case: str) -> None:
    make, code = HOSTILE[case]
    with pytest.raises(UploadRefused) as refused:
        unpack(make())
    assert refused.value.code == code


@pytest.mark.parametrize("size", [100, 8 << 10, 9 << 10, 125_000, 10_000_000])
def test_no_expression_is_matched_with_a_large_header(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Matching takes time quadratic in the header's bytes: 48 s for 125 KB."""
    given: list[int] = []
    search = re.search

    def spy(pattern: Any, text: Any, flags: int = 0) -> Any:
        given.append(len(text))
        return search(pattern, text[:MAX_TAR_HEADER_BYTES], flags)

    monkeypatch.setattr(tarfile.re, "search", spy)  # type: ignore[attr-defined]
    with suppress(UploadRefused):
        unpack(_pax_tar(size))
    assert max(given, default=0) <= MAX_TAR_HEADER_BYTES
    assert bool(given) == (size <= MAX_TAR_HEADER_BYTES)


@given(st.data(), st.sampled_from(["tar", "zip"]))
def test_mutated_archive(data: st.DataObject, kind: str) -> None:
    """It is refused, or the unpacked files match the archive's checksum (a tar has none)."""
    original = make_tar() if kind == "tar" else make_zip()
    raw = data.draw(mutated(original, len(original)))
    try:
        content = unpack(raw)
    except UploadRefused:
        return
    assert content.keys() == set(FILES)
    if kind == "zip":
        assert content == CONTENT


# --- Files without an archive --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "code"),
    [
        ([], UploadRefusal.FILE_MISSING),
        ([CONFIG], UploadRefusal.FILE_MISSING),
        ([WEIGHTS], UploadRefusal.FILE_MISSING),
        ([CONFIG, WEIGHTS, CONFIG], UploadRefusal.FILE_DUPLICATE),
        ([CONFIG, "training_args.bin"], UploadRefusal.FILE_MISSING),
        ([CONFIG, "adapter_model-00002-of-00002.safetensors"], UploadRefusal.FILE_MISSING),
        (["config.json", "model.safetensors"], UploadRefusal.FILE_MISSING),
        (["__MACOSX/" + CONFIG, "__MACOSX/" + WEIGHTS], UploadRefusal.FILE_MISSING),
        ([CONFIG, "adapter_model.bin"], UploadRefusal.PICKLE_REFUSED),
        ([CONFIG, "adapter_model.PT"], UploadRefusal.PICKLE_REFUSED),
        (["adapter.tar.bz2"], UploadRefusal.ARCHIVE_UNSUPPORTED),
        (["adapter.rar"], UploadRefusal.ARCHIVE_UNSUPPORTED),
    ],
)
def test_wrong_files(names: list[str], code: UploadRefusal) -> None:
    with pytest.raises(UploadRefused) as refused:
        select(names)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "head", [b"PK\x03\x04aaaaaaa", b"\x80\x02}q\x00(X\x04\x00", b"\x80\x05" * 8]
)
def test_pickle_under_a_false_name(head: bytes) -> None:
    with pytest.raises(UploadRefused) as refused:
        looked_at({CONFIG: b"{}", WEIGHTS: head})
    assert refused.value.code == UploadRefusal.PICKLE_REFUSED


def test_header_length_that_looks_like_a_pickle() -> None:
    """A valid file whose header has 0x0280 bytes begins like a pickle."""
    weights = (0x0280).to_bytes(8, "little") + b"{" + b" " * 0x027F
    found, _ = looked_at({CONFIG: b"{}", WEIGHTS: weights})
    assert found.weights_sha256 == hashlib.sha256(weights).hexdigest()
