"""`lorikeet batches` against a real console; the tests write the answers as a worker does."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from inference.link.accounts import Usage
from lorikeet import batches, retries
from lorikeet.transfer import files
from tenants.batch_states import Status
from tenants.batches.batch_leases import BatchLease
from tenants.batches.leases import Result
from tenants.models import Batch, StoredFile, Tenant, Upload, UploadPart
from tests.adapters.working import run_worker
from tests.batches.conftest import files_dir
from tests.client_cli.conftest import Run
from tests.client_cli.test_commands import Cutting
from tests.hub.conftest import Hub
from tests.tenants.making import make_base, make_key

__all__ = ["files_dir"]

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("worker", "object_storage"),
]
PART = 4096


@pytest.fixture
def signed_in(run: Run, hub: Hub, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands signed in with a key for inference, with small upload parts."""
    monkeypatch.setattr(files, "PART_BYTES", PART)
    monkeypatch.setattr(retries, "PAUSE_S", 0.02)
    monkeypatch.setattr(batches, "POLL_S", 0.05)
    make_base("base")
    key = make_key(tenant, "inference")[1]
    assert run("login", "--url", hub.url, "--api-url", hub.url, "--key", key).code == 0
    return run


def line(id: str, **body: Any) -> str:
    asked = {"model": "base", "messages": [{"role": "user", "content": "hi"}]} | body
    whole = {"custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": asked}
    return json.dumps(whole) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of a hundred requests, which is uploaded in several parts."""
    path = tmp_path / "lines.jsonl"
    path.write_text("\n" + "".join(line(f"line {number}") for number in range(100)))
    assert path.stat().st_size > 3 * PART
    return path


def answer_all(failing: int = 1) -> None:
    """Read the batch, answer its lines, the last `failing` with an error, and write its files."""
    run_worker("batches")
    (lease,) = BatchLease.claim(1)
    count = Batch.objects.get(pk=lease.id).total
    for number in range(count):
        status = 200 if number < count - failing else 400
        body = json.dumps({"said": f"{number}\u2028é"}, ensure_ascii=False).encode()
        lease.renew([Result(number + 2, status, body, Usage(3, 0, 2))])
    lease.finish(Status.COMPLETED)
    run_worker("batches")


@contextmanager
def answering() -> Iterator[None]:
    """Runs a worker that answers the first batch, if there is one, inside the context."""
    over = threading.Event()

    def work() -> None:
        try:
            while not over.is_set():
                if Batch.objects.filter(status=Status.VALIDATING).exists():
                    return answer_all()
                time.sleep(0.05)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_file_is_sent_answered_and_its_answers_come_back(
    signed_in: Run, file: Path, tmp_path: Path, home: Path
) -> None:
    with answering():
        made = signed_in("batches", "create", file, "--metadata", "for=tea", "--wait", "--json")
    assert made.code == 0 and made.json["status"] == "completed"
    id = made.json["id"]
    assert made.json["metadata"] == {"for": "tea"}
    assert made.json["request_counts"] == {"total": 100, "completed": 99, "failed": 1}
    assert StoredFile.objects.filter(purpose="batch").count() == 1
    assert not list((home / "uploads").iterdir())

    shown = signed_in("batches", "show", id)
    assert shown.code == 0 and "tea" in shown.out and "completed at" in shown.out
    (one,) = signed_in("batches", "list", "--json").json
    assert one["id"] == id and id in signed_in("batches", "list").out
    assert "99 of 100 requests answered, 1 failed." in signed_in("batches", "wait", id).err

    printed = signed_in("batches", "results", id)
    answers = [json.loads(text) for text in printed.out.split("\n") if text]
    assert [one["custom_id"] for one in answers] == [f"line {n}" for n in range(99)]
    assert answers[5]["response"]["body"] == {"said": "5\u2028é"}
    assert signed_in("batches", "results", id, "--json").json == answers
    (failure,) = signed_in("batches", "results", id, "--errors", "--json").json
    assert failure["custom_id"] == "line 99"
    out = tmp_path / "answers.jsonl"
    assert signed_in("batches", "results", id, "--out", out).out == ""
    assert out.read_text() == printed.out
    assert {path.name for path in tmp_path.iterdir()} >= {"answers.jsonl", "lines.jsonl"}
    assert not list(tmp_path.glob(".*.part"))


def test_what_is_wrong_with_a_file_is_told_by_the_line(signed_in: Run, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_text(line("a") + line("a") + line("b", model="nobody's"))
    id = signed_in("batches", "create", file, "--json").json["id"]
    run_worker("batches")
    failed = signed_in("batches", "wait", id)
    assert failed.code == 5 and f"{id} is failed." in failed.err
    assert "line 2: duplicate_custom_id: " in failed.err
    shown = signed_in("batches", "show", id)
    assert "line 2: duplicate_custom_id: " in shown.err
    assert re.search(r"failed +0", shown.out) and "failed at" in shown.out
    assert signed_in("batches", "results", id).out == ""


def test_a_batch_is_cancelled(signed_in: Run, file: Path) -> None:
    made = signed_in("batches", "create", file)
    assert (made.code, made.out) == (0, "") and "is validating." in made.err
    id = Batch.objects.get().pk
    early = signed_in("batches", "results", id)
    assert early.code == 1 and f"lorikeet batches wait {id}" in early.err
    assert "is cancelled." in signed_in("batches", "cancel", id).err
    assert signed_in("batches", "wait", id, "--json").code == 5
    again = signed_in("batches", "cancel", id)
    assert again.code == 1 and again.err
    assert signed_in("batches", "show", "batch_nobodys").code == 4


def test_lists_go_on_behind_a_page(
    signed_in: Run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "PAGE", 2)
    made = [signed_in("batches", "create", file, "--json").json["id"] for _ in range(5)]
    found = signed_in("batches", "list", "--limit", 3, "--json").json
    assert [one["id"] for one in found] == made[:1:-1]
    assert len(signed_in("batches", "list", "--json").json) == 5


@pytest.fixture
def cutting(signed_in: Run, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cutting]:
    """A proxy that closes the first connection after about two parts."""
    proxy = Cutting(hub.url, after=2 * PART + PART // 2, times=1)
    monkeypatch.setenv("LORIKEET_API_URL", proxy.url)
    yield proxy
    proxy.close()


def test_an_upload_goes_on_where_its_connection_broke(
    signed_in: Run, cutting: Cutting, file: Path
) -> None:
    assert signed_in("batches", "create", file).code == 0
    assert Upload.objects.count() == 1
    (sent,) = StoredFile.objects.all()
    assert sent.size_bytes == file.stat().st_size
    assert cutting.passed < 2 * file.stat().st_size


def test_the_next_upload_goes_on_where_one_ended(
    signed_in: Run, cutting: Cutting, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "ATTEMPTS", 1)
    assert signed_in("batches", "create", file).code == 6
    kept = set(UploadPart.objects.values_list("pk", flat=True))
    assert kept
    assert signed_in("batches", "create", file).code == 0
    assert Upload.objects.count() == 1 and Batch.objects.count() == 1
    assert cutting.passed < 2 * file.stat().st_size


def test_an_upload_that_has_ended_begins_anew(
    signed_in: Run, cutting: Cutting, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "ATTEMPTS", 1)
    assert signed_in("batches", "create", file).code == 6
    Upload.objects.update(status="expired")
    assert signed_in("batches", "create", file).code == 0
    assert Upload.objects.count() == 2 and Batch.objects.count() == 1


def test_what_can_not_be_sent(signed_in: Run, tmp_path: Path) -> None:
    empty, other = tmp_path / "empty.jsonl", tmp_path / "other.jsonl"
    empty.touch()
    other.write_text('{"url": 1}\n')
    assert "empty" in signed_in("batches", "create", empty).err
    assert signed_in("batches", "create", tmp_path / "none.jsonl").code == 1
    assert "--endpoint" in signed_in("batches", "create", other).err
    assert signed_in("batches", "create", other, "--metadata", "tea").code == 2
    refused = signed_in("batches", "create", other, "--endpoint", "/v1/models")
    assert refused.code == 1 and "/v1/chat/completions" in refused.err
    assert not Batch.objects.exists()
