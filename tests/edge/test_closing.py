"""A connection is never closed under a request that has arrived, whether or not it was read yet.

The connections' clock is the test's, and nothing is read from their sockets until the test does it,
as in a process that stood still.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest
import uvloop
from uvicorn.server import ServerState

from gateway.edge.bounds import EdgeBounds
from gateway.edge.census import Census
from gateway.edge.http import HttpConnection
from gateway.edge.proxies import Proxies
from gateway.planes import server as serving
from gateway.planes.server import Server, configured
from tests.edge.serving import Application, get, post

BOUNDS = EdgeBounds()
LATE_S = 1000.0
"""Longer than all bounds."""


@dataclass(eq=False)
class FakeTimer:
    due: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class FakeLoop:
    """The test's clock; tasks run on the real loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timer = FakeTimer(self.now + delay_s, callback)
        self._timers.append(timer)
        return cast(asyncio.TimerHandle, timer)

    def create_task(self, work: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    def pass_time(self, seconds: float) -> None:
        """Call all that is due then, before anything is read."""
        self.now += seconds
        for timer in [timer for timer in self._timers if timer.due <= self.now]:
            self._timers.remove(timer)
            if not timer.cancelled:
                timer.callback()


class FakeTransport:
    """A transport that reads nothing by itself."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return self._sock if name == "socket" else None

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        self.written += data

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0


class Connection:
    """A connection, and its client's end."""

    def __init__(self, client: socket.socket, sock: socket.socket) -> None:
        self.loop, self.census = FakeLoop(), Census(10, 10)
        self._client = client
        config = configured(
            Application(), BOUNDS, Proxies(()), self.census, lifespan="off", ws="none"
        )
        config.load()
        self._sock, self.transport = sock, FakeTransport(sock)
        make: Any = config.http_protocol_class
        self.protocol: HttpConnection = make(
            config=config, server_state=ServerState(), app_state={}, _loop=self.loop
        )
        self.protocol.connection_made(cast(asyncio.Transport, self.transport))

    def send(self, data: bytes) -> None:
        """Send it as the client; returns once it has arrived."""
        self._client.sendall(data)
        select.select([self._sock], [], [])

    def read(self) -> None:
        """Read what has arrived, as the event loop does once it runs."""
        self.protocol.data_received(self._sock.recv(1 << 16))

    async def answered(self) -> bytes:
        """Read a request, and return what was written once it was answered."""
        self.transport.written = b""
        self.read()
        await asyncio.gather(*self.protocol.tasks)
        return self.transport.written


@pytest.fixture
def connection() -> Iterator[Connection]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as sock,
    ):
        made = Connection(client, sock)
        yield made
        made.protocol.connection_lost(None)


async def test_a_first_request_that_was_read_late_is_answered(connection: Connection) -> None:
    connection.send(get())
    connection.loop.pass_time(LATE_S)
    assert not connection.transport.closed
    assert (await connection.answered()).startswith(b"HTTP/1.1 200")


async def test_a_next_request_that_was_read_late_is_answered(connection: Connection) -> None:
    connection.send(get())
    await connection.answered()
    connection.send(get())
    connection.loop.pass_time(LATE_S)
    assert not connection.transport.closed
    assert (await connection.answered()).startswith(b"HTTP/1.1 200")


async def test_a_body_that_was_read_late_is_taken(connection: Connection) -> None:
    connection.send(post("Content-Length: 4", body=b"ab"))
    connection.read()
    connection.send(b"cd")
    connection.loop.pass_time(LATE_S)
    assert not connection.transport.closed
    assert (await connection.answered()).startswith(b"HTTP/1.1 200")


async def test_a_client_that_sent_nothing_is_not_excused(connection: Connection) -> None:
    connection.send(get())
    await connection.answered()
    connection.loop.pass_time(LATE_S)
    assert connection.transport.closed


async def test_bytes_that_keep_coming_excuse_nobody(connection: Connection) -> None:
    connection.send(b"GET / HTTP/1.1\r\n")
    connection.loop.pass_time(LATE_S)
    connection.read()
    connection.send(b"x: y\r\n")
    connection.loop.pass_time(BOUNDS.tick_s)
    assert connection.transport.written.startswith(b"HTTP/1.1 408")


async def test_a_request_sent_ahead_may_come_in_parts_while_an_earlier_one_runs(
    connection: Connection,
) -> None:
    """Its rest is not read until the earlier one is answered."""
    connection.send(get("/hold") + get() + b"GET / HT")
    connection.read()
    connection.loop.pass_time(LATE_S)
    connection.loop.pass_time(LATE_S)
    assert not connection.transport.closed


# --- The end of the process ----------------------------------------------------------------------


async def test_an_idle_connection_is_closed_at_the_end(connection: Connection) -> None:
    connection.send(get())
    assert b"connection: close" not in await connection.answered()
    connection.protocol.shutdown()
    assert connection.transport.closed


@pytest.mark.parametrize("earlier", [False, True])
async def test_a_request_that_arrived_before_the_end_is_answered(
    connection: Connection, earlier: bool
) -> None:
    if earlier:
        connection.send(get())
        await connection.answered()
    connection.send(get())
    connection.protocol.shutdown()
    assert not connection.transport.closed
    answer = await connection.answered()
    assert answer.startswith(b"HTTP/1.1 200") and b"connection: close" in answer
    assert connection.transport.closed


async def test_half_a_request_that_arrived_before_the_end_may_be_completed(
    connection: Connection,
) -> None:
    connection.send(get()[:-2])
    connection.read()
    connection.protocol.shutdown()
    connection.send(b"\r\n")
    assert b"connection: close" in await connection.answered()
    assert connection.transport.closed


async def test_a_connection_is_kept_for_the_rest_of_a_body_that_was_answered_early(
    connection: Connection,
) -> None:
    """If it were closed at once, the rest would reset it, and its client might lose the answer."""
    connection.census.closing = True
    connection.send(post("Content-Length: 4", path="/early"))
    assert b"connection: close" not in await connection.answered()
    assert not connection.transport.closed


class Held:
    """Answers once `released` is set, except for `/`, which it answers at once."""

    def __init__(self) -> None:
        self.arrived, self.released = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] != "/":
            self.arrived.set()
            await self.released.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


async def test_each_answer_is_the_last_on_its_connection_once_a_server_drains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "ARRIVAL_S", 0.0)
    app, census = Held(), Census(10, 10)
    config = configured(app, BOUNDS, Proxies(()), census, lifespan="off", ws="none")
    server = Server(config, census, app.released.wait)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        address = listener.getsockname()
        held, kept = [await asyncio.open_connection(*address) for _ in range(2)]
        held[1].write(get("/held"))
        await app.arrived.wait()
        kept[1].write(get())
        assert b"connection: close" not in await kept[0].readuntil(b"\r\n\r\n")
        server.handle_exit(15, None)
        while not census.closing:  # noqa: ASYNC110 - set soon, by the signal's handler
            await asyncio.sleep(0)
        kept[1].write(get())
        new = await asyncio.open_connection(*address)
        new[1].write(get())
        answers = [await reader.read() for reader, _ in (kept, new)]
        app.released.set()
        answers.append(await held[0].read())
        await running
    assert all(b"connection: close" in answer for answer in answers)
    for _, writer in (held, kept, new):
        writer.close()


def test_connections_that_the_kernel_holds_are_answered_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a busy machine: production's loop accepts one connection per iteration."""
    monkeypatch.setattr(serving, "ARRIVAL_S", 0.0)

    async def run() -> list[bytes]:
        census, ended = Census(100, 100), asyncio.Event()
        config = configured(Held(), BOUNDS, Proxies(()), census, lifespan="off", ws="none")
        server = Server(config, census, ended.wait)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            running = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0)
            clients = [socket.create_connection(listener.getsockname()) for _ in range(20)]
            for client in clients:
                client.sendall(get())
            await server.shutdown()
            server.should_exit = True
            await running
        answers = [client.recv(1 << 16) for client in clients]
        for client in clients:
            client.close()
        return answers

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answers = runner.run(run())
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 204"] * 20
