"""How a process reports its state to systemd and Kubernetes."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvicorn

from gateway.edge.census import Census
from gateway.planes.server import Server, nothing
from inference.process import announce
from tests.inference.rig import until


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """systemd's notification socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


def test_announcing_without_a_listener_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce.ready()
    announce.stopping()
    asyncio.run(announce.keep_alive())
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    announce.ready()


def test_an_abstract_socket_is_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"lorikeet-tests-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        announce.ready()
        assert listening.recv(64) == b"READY=1"


async def test_the_watchdog_is_told_as_long_as_the_loop_turns(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000")
    task = asyncio.create_task(announce.keep_alive())
    for _ in range(2):
        assert await asyncio.to_thread(systemd.recv, 64) == b"WATCHDOG=1"
    task.cancel()


async def test_the_file_is_there_while_the_process_is_ready_and_its_time_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ready"
    monkeypatch.setenv("LORIKEET_READY_FILE", str(file))
    monkeypatch.setattr(announce, "ALIVE_S", 0.01)
    task = asyncio.create_task(announce.keep_alive())
    await asyncio.sleep(0)
    assert not file.exists()
    announce.ready()
    os.utime(file, (0, 0))
    async with asyncio.timeout(60):
        while file.stat().st_mtime == 0:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    announce.stopping()
    await asyncio.sleep(0.05)
    assert not file.exists() and not task.done()
    task.cancel()


async def test_a_file_that_can_not_be_renewed_is_logged_and_tried_again(
    tmp_path: Path, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in place of its folder: no error of a file that is not there yet."""
    folder = tmp_path / "folder"
    folder.touch()
    monkeypatch.setenv("LORIKEET_READY_FILE", str(folder / "ready"))
    monkeypatch.setenv("WATCHDOG_USEC", "3000")
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(announce.keep_alive())
        for _ in range(3):
            assert await asyncio.to_thread(systemd.recv, 64) == b"WATCHDOG=1"
    folder.unlink()
    folder.mkdir()
    announce.ready()
    os.utime(folder / "ready", (0, 0))
    await until(lambda: (folder / "ready").stat().st_mtime > 0)
    task.cancel()
    assert {(log["event"], log["task"]) for log in logs} == {("task_ended", "keep_alive")}


async def test_a_server_is_ready_once_it_listens_and_says_when_it_drains(
    systemd: socket.socket,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None)
    server = Server(config, Census(10, 10), nothing)
    serving = asyncio.create_task(server.serve())
    assert await asyncio.to_thread(systemd.recv, 64) == b"READY=1"
    server.handle_exit(15, None)
    assert await asyncio.to_thread(systemd.recv, 64) == b"STOPPING=1"
    await serving
