"""An archive has everything that is its tenant's, nothing of another one, and no secret."""

from __future__ import annotations

import hashlib
import json
import tarfile
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from django.core.management import CommandError, call_command

from gateway import backups
from tenants.billing.receipts import signer, verify
from tenants.files import blobs
from tenants.models import AuditEntry, Tenant
from tenants.offboarding import exports
from tenants.offboarding.sections import LEFT_OUT, exported, sections
from tests.tenants.making import make_tenant
from tests.tenants.offboarding.furnishing import Furnished, furnish, paths_to_tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def furnished(tenant: Tenant) -> Furnished:
    return furnish(tenant, "mine")


def archive_of(tenant: Tenant, *, content: bool = True) -> ZipFile:
    file = BytesIO()
    order = exports.ExportOrder(tenant, "ann", content)
    exports.write(order, file, lambda said: None)
    return ZipFile(file)


def rows(archive: ZipFile, name: str) -> list[Any]:
    return [json.loads(line) for line in archive.read(f"{name}.jsonl").splitlines()]


def texts(archive: ZipFile) -> str:
    return "\n".join(archive.read(name).decode() for name in archive.namelist())


def test_each_model_of_a_tenant_is_exported_or_left_out_for_a_reason() -> None:
    assert paths_to_tenant().keys() == exported() | LEFT_OUT.keys()
    assert not exported() & LEFT_OUT.keys()


def test_everything_is_there_with_its_digest(furnished: Furnished) -> None:
    archive = archive_of(furnished.tenant)
    assert archive.testzip() is None
    manifest = json.loads(archive.read("manifest.json"))
    assert (manifest["tenant"], manifest["by"], manifest["missing"]) == ("acme", "ann", [
        f"files/{one.pk}" for one in furnished.tenant.files.all() if not blobs.exists(one.pk)
    ])  # fmt: skip
    told = {one["name"]: one for one in manifest["members"]}
    assert {*told, "manifest.json"} == {*archive.namelist()}
    for name, one in told.items():
        data = archive.read(name)
        digest = hashlib.sha256(data).hexdigest()
        assert (one["bytes"], one["sha256"]) == (len(data), digest), name
        assert "rows" not in one or one["rows"] == len(data.splitlines()), name
    for section in sections(furnished.tenant):
        assert told[f"{section.name}.jsonl"]["rows"] > 0, section.name
    assert rows(archive, "members")[0]["user__email"] == "mine@example.com"
    assert rows(archive, "stored_content")[0]["text"] == "prompt of mine"
    assert verify(rows(archive, "receipts")[0], [signer().public_key])["id"] == "req_event-mine"
    files = {name: archive.read(name).decode() for name in told if "/" in name}
    assert files["adapters/adapter-mine/1/adapter_model.safetensors"].endswith(" mine")
    assert files["adapters/adapter-mine/1/original/adapter_config.json"].startswith("original/")
    assert "bytes of mine" in files.values()


def test_it_has_no_secret_and_nothing_of_another_tenant(furnished: Furnished) -> None:
    other = furnish(make_tenant("other"), "theirs")
    found = texts(archive_of(furnished.tenant))
    assert "mine" in found and "theirs" not in found
    for secret in (*furnished.secrets, *other.secrets):
        assert secret not in found


def test_an_operators_has_nothing_that_only_members_read(furnished: Furnished) -> None:
    archive = archive_of(furnished.tenant, content=False)
    private = {f"{one.name}.jsonl" for one in sections(furnished.tenant) if one.private}
    assert private and not private & {*archive.namelist()}
    assert "prompt of mine" not in texts(archive) and b"conversations" in archive.read("README.txt")


def test_the_command_writes_one_and_says_so(furnished: Furnished, tmp_path: Path) -> None:
    out, said = tmp_path / "acme.zip", StringIO()
    call_command("export_tenant", "acme", "--out", str(out), stdout=said)
    assert ZipFile(out).testzip() is None and out.stat().st_mode & 0o077 == 0
    assert "members: 1\n" in said.getvalue() and str(out) in said.getvalue()
    entry = AuditEntry.objects.filter(kind="export").latest("pk")
    assert (entry.tenant, entry.actor_kind, entry.action) == (furnished.tenant, "system", "created")
    for slug, where in (("acme", out), ("nobody", tmp_path / "x.zip")):
        with pytest.raises(CommandError):
            call_command("export_tenant", slug, "--out", str(where))
    assert [one.name for one in tmp_path.iterdir()] == ["acme.zip"]


def test_backups_have_no_archives(tmp_path: Path) -> None:
    for name in ("export-0123456789abcdef01234567", "making-x", "file-1"):
        (tmp_path / name).write_bytes(b"x")
    added = set[str]()
    with tarfile.open(tmp_path.parent / "b.tar", "w") as tar:
        backups._add_folder(tar, "files", tmp_path, added)
    assert added == {"files/file-1"}
