"""Child processes that read untrusted files: they stay within their limits, inherit neither Django
nor secrets, and cannot crash their parent."""

from __future__ import annotations

import hashlib
import io
import os
import select
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from inference.content import CONFIG, FILES, WEIGHTS
from tenants.adapters import sandbox
from tenants.adapters.sandbox import Crashed, LimitExceeded, SandboxLimits
from tenants.adapters.uploads.content import CONVERTED
from tenants.models import AdapterVersion
from tests.adapters.checks.builder import config_bytes, encode, lora, modules
from tests.adapters.checks.test_archives import make_tar, make_zip
from tests.adapters.uploads.uploading import files, upload
from tests.adapters.working import run_worker
from tests.batches.test_reading import line
from tests.stack.asking import until
from tests.storing import left_of_uploads

ROOMY = SandboxLimits(cpu_s=60, time_s=300, memory_bytes=1 << 30, file_bytes=64 << 20)
CHECK = {"task": "check", "modules": modules(), "max_lora_rank": 16}
UNPACK = {"task": "unpack", "max_bytes": 64 << 20}


def opened(folder: Path, stack: ExitStack, content: dict[str, bytes]) -> sandbox.Files:
    """Files with this content, open for reading and writing."""
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return {name: (stack.enter_context((folder / name).open("r+b")), "r+b") for name in content}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[sandbox.Files]:
    """The two files of a valid adapter."""
    with ExitStack() as stack:
        yield opened(tmp_path, stack, {CONFIG: config_bytes(), WEIGHTS: lora().bytes()})


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[sandbox.Files]:
    """A valid adapter as a tar, and the files to unpack it to."""
    with ExitStack() as stack:
        content = {"archive": make_tar(), CONFIG: b"", WEIGHTS: b"left over", "scratch": b""}
        yield opened(tmp_path, stack, content)


def test_the_result_of_a_check(two: sandbox.Files) -> None:
    found = sandbox.run(CHECK, two, ROOMY)
    assert found["report"]["findings"] == []
    assert found["config"]["r"] == 4
    assert found["config_sha256"] == hashlib.sha256(config_bytes()).hexdigest()


def test_an_archive_is_unpacked_to_the_given_files(packed: sandbox.Files, tmp_path: Path) -> None:
    found = sandbox.run(UNPACK, packed, ROOMY)
    assert (tmp_path / CONFIG).read_bytes() == config_bytes()
    assert (tmp_path / WEIGHTS).read_bytes() == lora().bytes()
    assert found == {"left_out": []}


def test_what_is_read_of_the_two_files(two: sandbox.Files, tmp_path: Path) -> None:
    with ExitStack() as stack:
        empty = opened(tmp_path, stack, {f"{CONVERTED}{name}": b"left over" for name in FILES})
        found = sandbox.run({"task": "read", "oid": ""}, {**two, **empty}, ROOMY)
    size = len(config_bytes()) + len(lora().bytes())
    assert (found["trained_on"], found["size_bytes"], found["converted"]) == ("tiny", size, {})
    assert not (tmp_path / f"{CONVERTED}{CONFIG}").read_bytes()


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (replace(ROOMY, file_bytes=1_000), "file size"),
        (replace(ROOMY, time_s=0), "0 s"),
    ],
)
def test_limits_of_unpacking(packed: sandbox.Files, limits: SandboxLimits, told: str) -> None:
    with pytest.raises(LimitExceeded, match=told):
        sandbox.run(UNPACK, packed, limits)


def test_the_memory_limit(tmp_path: Path) -> None:
    """The 8 MB header has as many objects as fit into its size."""
    header = b'{"a":[' + b"[[[[[[]]]]]]," * ((8 << 20) // 13 - 2) + b"[]]}"
    limits = replace(ROOMY, memory_bytes=192 << 20)
    with ExitStack() as stack:
        hostile = {CONFIG: config_bytes(), WEIGHTS: encode(header, b"")}
        with pytest.raises(LimitExceeded, match="memory"):
            sandbox.run(CHECK, opened(tmp_path, stack, hostile), limits)


def test_limits_of_opening(tmp_path: Path) -> None:
    """Reading a batch imports modules."""
    task = {"task": "batch", "operation": "chat", "max_body_bytes": 1 << 20}
    with ExitStack() as stack, pytest.raises(LimitExceeded, match="open files"):
        files = opened(tmp_path, stack, {"batch": line("a")})
        sandbox.run(task, files, replace(ROOMY, open_files=0))


def test_what_the_disk_refuses_is_no_fault_of_the_files(
    packed: sandbox.Files, tmp_path: Path
) -> None:
    with (tmp_path / WEIGHTS).open("rb") as unwritable, pytest.raises(OSError, match="Invalid"):
        sandbox.run(UNPACK, {**packed, WEIGHTS: (unwritable, "r+b")}, ROOMY)


def test_a_crash_is_told_with_its_reason(two: sandbox.Files) -> None:
    with pytest.raises(Crashed, match=r"(?s)status 1: .*KeyError: 'nonsense'"):
        sandbox.run({"task": "nonsense"}, two, ROOMY)


def test_files_are_read_from_their_start_whatever_read_them_before(tmp_path: Path) -> None:
    task = {"task": "batch", "operation": "chat", "max_body_bytes": 1 << 20}
    with ExitStack() as stack:
        files = opened(tmp_path, stack, {"batch": line("a") + line("b")})
        os.lseek(files["batch"][0].fileno(), 0, os.SEEK_END)
        found = sandbox.run(task, files, ROOMY)
    assert (found["requests"], found["errors"]) == (2, [])


OWN_TASKS = """
import os, time
from tenants.adapters.checks import __main__ as checks

def spin(task, files):
    while True:
        pass

def sleep(task, files):
    os.fork()
    os.write(files["pids"].fileno(), b"%d\\n" % os.getpid())
    time.sleep(600)

checks.TASKS.update(sleep=sleep, spin=spin)
checks.main()
"""


@pytest.fixture
def own_tasks(monkeypatch: pytest.MonkeyPatch, templates: sandbox.Templates) -> None:
    """The tasks of OWN_TASKS."""
    monkeypatch.setattr(sandbox, "COMMAND", [*sandbox.COMMAND[:3], "-c", OWN_TASKS])


@pytest.mark.usefixtures("own_tasks")
def test_the_limit_of_cpu_time() -> None:
    with pytest.raises(LimitExceeded, match="CPU"):
        sandbox.run({"task": "spin"}, {}, replace(ROOMY, cpu_s=1))


@pytest.mark.usefixtures("own_tasks")
def test_nothing_of_a_child_is_left_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own children are killed too."""
    pids = tmp_path / "pids"

    def time_is_over(*_: object) -> tuple[list[Any], ...]:
        until(lambda: len(pids.read_text().splitlines()) == 2)
        return [], [], []

    monkeypatch.setattr(select, "select", time_is_over)
    with ExitStack() as stack, pytest.raises(LimitExceeded):
        sandbox.run({"task": "sleep"}, opened(tmp_path, stack, {"pids": b""}), ROOMY)
    until(lambda: all(ended(int(pid)) for pid in pids.read_text().split()))


def test_children_of_one_template(two: sandbox.Files, templates: sandbox.Templates) -> None:
    """It has numpy for all of them, and one that crashes does not spoil it. A template that has
    ended is replaced."""
    templates.prepare(computes=False)
    (template,) = templates.idle()
    sandbox.run(CHECK, two, ROOMY)
    assert "/numpy/" in Path(f"/proc/{template.pid}/maps").read_text()
    with pytest.raises(Crashed):
        sandbox.run({"task": "nonsense"}, two, ROOMY)
    sandbox.run(CHECK, two, ROOMY)
    assert templates.idle() == [template]
    template.close()
    sandbox.run(CHECK, two, ROOMY)
    (other,) = templates.idle()
    assert other is not template
    other.close()


@pytest.fixture
def templates(monkeypatch: pytest.MonkeyPatch) -> sandbox.Templates:
    """None is idle yet."""
    templates = sandbox.Templates()
    monkeypatch.setattr(sandbox, "templates", templates)
    return templates


def ended(pid: int) -> bool:
    """Whether a process no longer runs; it may be a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_child_has_no_django_and_no_secret(settings: Settings) -> None:
    """It starts quickly, and the process that reads hostile bytes has nothing to leak."""
    program = (
        "import os, sys; import tenants.adapters.checks.__main__, tenants.adapters.checks.static; "
        "print('django' in sys.modules, 'rest_framework' in sys.modules, *sorted(os.environ))"
    )
    command = [*sandbox.COMMAND[:3], "-c", program]
    said = subprocess.check_output(command, env=sandbox.ENVIRONMENT, text=True).split()
    assert said[:2] == ["False", "False"]
    assert set(said[2:]) <= {*sandbox.ENVIRONMENT, "LC_CTYPE"}
    assert settings.SECRET_KEY not in sandbox.ENVIRONMENT.values()


# --- Bombs, through a real upload ----------------------------------------------------------------


def extended(body: bytes, count: int = 1) -> bytes:
    """A tar of a valid adapter after `count` extended headers with the content `body`."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, len(body)
    return (info.tobuf() + body + bytes(-len(body) % 512)) * count + make_tar()


def _sparse() -> bytes:
    """A tar whose sparse weights claim to have a terabyte, nearly all of it zeros."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in FILES:
            info = tarfile.TarInfo(name)
            info.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": "0,1"}
            archive.addfile(info)
    return target.getvalue()


def _huge() -> bytes:
    """A tar with a member that claims to have eight exabytes."""
    info = tarfile.TarInfo(CONFIG)
    info.size = 1 << 63
    return info.tobuf(format=tarfile.GNU_FORMAT) + b"{}"


def _crowded_zip() -> bytes:
    return make_zip([(f"{number}", b"") for number in range(3000)])


BOMBS: dict[str, tuple[str, Any, int, str]] = {
    "a tar's header of 125 KB, quadratic to read": (
        "a.tar", lambda: extended(b"1" * 125_000), 400, "archive_invalid",
    ),
    "many such headers, each just short enough": (
        "a.tar", lambda: extended(b"1" * 8_000, 300), 400, "check_limit_exceeded",
    ),
    "a zip that grows a thousandfold": (
        "a.zip", lambda: make_zip([(CONFIG, b"{}"), (WEIGHTS, bytes(16 << 20))]), 400,
        "archive_bomb",
    ),
    "thousands of members in a tar": (
        "a.tar", lambda: make_tar([(f"{number}", b"") for number in range(3000)]), 400,
        "archive_crowded",
    ),
    "thousands of members in a zip": ("a.zip", _crowded_zip, 400, "archive_crowded"),
    "a sparse member": ("a.tar", _sparse, 400, "archive_member_refused"),
    "a huge member": ("a.tar", _huge, 400, "archive_invalid"),
}  # fmt: skip


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls("tests.adapters.uploads.uploading")
@pytest.mark.usefixtures("worker", "tenant", "base_model", "object_storage")
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused(bomb: str, settings: Settings) -> None:
    settings.CHECK_CPU_S = 2
    name, make, status, code = BOMBS[bomb]
    answer, body = upload(files((name, make())))
    assert (answer, body["code"]) == (status, code)
    assert not AdapterVersion.objects.exists()
    until(lambda: not left_of_uploads(settings))  # the worker's last step


HEADER = b'{"a":' + b"[" * 3_000 + b"]" * 3_000 + b"}"


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls("tests.adapters.uploads.uploading")
@pytest.mark.usefixtures("worker", "tenant", "base_model", "object_storage")
@pytest.mark.parametrize(
    ("config", "weights", "code"),
    [
        (HEADER, lora().bytes(), "config_not_json"),
        (config_bytes(), encode(HEADER, b""), "header_invalid"),
        (config_bytes(), (1 << 62).to_bytes(8, "little") + b"{}", "header_invalid"),
    ],
    ids=["nested configuration", "nested header", "a header of 4 exabytes"],
)
def test_bombs_are_rejected(config: bytes, weights: bytes, code: str) -> None:
    assert upload(files((CONFIG, config), (WEIGHTS, weights)))[0] == 201
    run_worker("default")
    version = AdapterVersion.objects.get()
    assert version.state == "rejected"
    assert [finding["code"] for finding in version.report["findings"]] == [code]
