"""How a push behaves while the server fails, and the record of unfinished pushes."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from lorikeet import retries
from lorikeet.adapters import _judged
from lorikeet.api import Api
from lorikeet.connection import Connection
from lorikeet.failures import Unreachable
from lorikeet.transfer import memory
from lorikeet.transfer.archive import Archive
from lorikeet.transfer.memory import Memory
from lorikeet.transfer.uploads import Upload
from tests.client_cli.conftest import adapter

VERSION = {"adapter": "a", "number": 1, "state": "ready", "report": {}}


class Tus:
    """A server of one upload; a response that `failing` returns for a request replaces its own."""

    def __init__(self, failing: Callable[[httpx.Request], httpx.Response | None]) -> None:
        self._failing = failing
        self.offset, self.asked = 0, list[str]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = request.read()
        self.asked.append(request.method)
        if (failed := self._failing(request)) is not None:
            return failed
        if request.method == "PATCH":
            self.offset += len(body)
        headers = {"upload-offset": str(self.offset), "location": "http://tus/api/v1/uploads/1"}
        return httpx.Response(200, headers=headers, json={"state": "complete", "version": VERSION})


@pytest.fixture(autouse=True)
def quick(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PAUSE_S", 0.0)
    monkeypatch.setattr("lorikeet.adapters.POLL_S", 0.0)


def api_of(server: Callable[[httpx.Request], httpx.Response]) -> Api:
    return Api(
        Connection("http://tus", "http://tus", "lk_x"), transport=httpx.MockTransport(server)
    )


def first(method: str, status: int) -> Callable[[httpx.Request], httpx.Response | None]:
    """Fails the first PATCH and the first request with `method`, with this status."""
    failed = list[str]()

    def failing(request: httpx.Request) -> httpx.Response | None:
        if request.method not in ("PATCH", method) or request.method in failed:
            return None
        failed.append(request.method)
        return httpx.Response(status, json={"detail": "not now"})

    return failing


@pytest.mark.parametrize(
    ("method", "status"), [("PATCH", 503), ("HEAD", 502), ("GET", 503), ("PATCH", 409)]
)
def test_a_push_outlasts_what_fails_for_a_moment(tmp_path: Path, method: str, status: int) -> None:
    tus = Tus(first(method, status))
    archive = Archive(adapter(tmp_path / "a"))
    assert Upload(api_of(tus), archive, "a", {}).send(lambda at: None) == VERSION
    assert tus.offset == archive.size


def test_a_push_gives_up_when_another_one_goes_on_sending(tmp_path: Path) -> None:
    tus = Tus(lambda asked: httpx.Response(409) if asked.method == "PATCH" else None)
    with pytest.raises(Unreachable, match="Push again"):
        Upload(api_of(tus), Archive(adapter(tmp_path / "a")), "a", {}).send(lambda at: None)
    assert tus.asked.count("PATCH") == retries.ATTEMPTS


def test_waiting_for_a_verdict_outlasts_what_fails_for_a_moment() -> None:
    answers = [httpx.Response(502), httpx.Response(200, json=VERSION)]
    api = api_of(lambda request: answers.pop(0))
    assert _judged(api, VERSION | {"state": "validating"}) == VERSION


def test_uploads_at_the_same_time_forget_nothing_of_each_other() -> None:
    memories = [Memory[int](str(number)) for number in range(memory.MOST)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(Memory.remember, memories, range(memory.MOST)))
    assert [one.recall() for one in memories] == list(range(memory.MOST))


def test_of_many_uploads_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST", 2)
    memories = [Memory[int](str(number)) for number in range(3)]
    for number, one in enumerate(memories):
        one.remember(number)
        os.utime(one._file, (number, number))
    assert [one.recall() for one in memories] == [None, 1, 2]
    memories[1].forget()
    assert memories[1].recall() is None
