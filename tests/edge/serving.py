"""A server behind the edge, on production's event loop, and clients that send arbitrary bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from gateway.edge.bounds import EdgeBounds
from gateway.edge.census import Census
from gateway.edge.proxies import Proxies
from gateway.edge.websocket import SocketConnection
from gateway.planes.server import configured
from inference.errors import InvalidApiKey
from inference.gateway.exchanges.exchange import refuse_socket
from tests.servers import PromptServer

TIMEOUT_S = 60.0
"""Longest wait; anything slower is taken to hang."""
SOON = 0.2
"""Seconds for bounds whose expiry a test waits for."""


@dataclass
class Seen:
    """What the application has received."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Paths whose answer the application has finished or abandoned."""
    messages: list[Any] = field(default_factory=list)


class Application:
    """`/`: echoes the request. `/hold`: never answers. `/stream/<n>/<bytes>`: `n` parts of so many
    bytes, one after another. `/early`: answers before it reads the body. `/broken`: fails after the
    head of its answer. Websockets answer each message with its length; `/ws/pour` sends more than
    its client reads; `/ws/refused` is refused with 401."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.trust: tuple[int, bool] | None = None
        """What websockets declare about their clients: bytes per message, and whether frames are
        paced."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.requests.append({**scope, "headers": list(scope["headers"])})
        try:
            if scope["type"] == "websocket":
                await self._socket(scope, receive, send)
            else:
                await self._http(scope, receive, send)
        finally:
            self.seen.ended.append(scope["path"])

    async def _http(self, scope: Any, receive: Any, send: Any) -> None:
        way, *rest = scope["path"].strip("/").split("/")
        if way != "early":
            await self._read(receive)
        if way == "hold":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        if way == "stream":
            await self._stream(send, int(rest[0]), int(rest[1]), float(rest[2]))
            return
        if way == "broken":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise ValueError
        said = {"client": scope["client"][0], "scheme": scope["scheme"], "path": scope["path"]}
        body = json.dumps(said | {"headers": len(scope["headers"])}).encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    async def _read(self, receive: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.seen.bodies.append(body)

    async def _stream(self, send: Any, count: int, size: int, pause_s: float) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(count):
            await asyncio.sleep(pause_s)
            await send({"type": "http.response.body", "body": b"x" * size, "more_body": True})
        await send({"type": "http.response.body"})

    async def _socket(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/ws/refused":
            return await refuse_socket(scope, receive, send, InvalidApiKey())
        await send({"type": "websocket.accept"})
        if self.trust is not None:
            most, paced = self.trust
            scope["extensions"]["lorikeet.trust"]["trust"](most, paced=paced)
        while scope["path"] == "/ws/pour":
            await send({"type": "websocket.send", "bytes": bytes(1 << 20)})
        while (event := await receive())["type"] == "websocket.receive":
            message = event.get("bytes") or event.get("text")
            self.seen.messages.append(message)
            await send({"type": "websocket.send", "text": f"{len(message)}"})


@dataclass
class Served:
    """A running server."""

    app: Any
    port: int
    server: PromptServer

    @property
    def seen(self) -> Seen:
        seen: Seen = self.app.seen
        return seen

    def dial(self) -> Client:
        return Client(socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S))

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < end, "it never came true"
            time.sleep(0.01)


class Client:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def pour(self, part: bytes, most: int) -> int:
        """Send `part` repeatedly until the server accepts no more or `most` bytes were sent;
        returns the number of bytes."""
        sent = 0
        try:
            while sent < most:
                sent += self.sock.send(part)
        except OSError:
            pass
        return sent

    def pour_slowly(self, part: bytes, pause_s: float) -> bytes:
        """Send `part` repeatedly until the server closes the connection; returns what it sent."""
        said = b""
        self.sock.settimeout(pause_s)
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            try:
                self.sock.sendall(part)
                received = self.sock.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                return said
            if not received:
                return said
            said += received
        raise AssertionError("it was let send for ever")

    def read(self, size: int = 1 << 16) -> bytes:
        return self.sock.recv(size)

    def rest(self) -> bytes:
        """All bytes until the server closes the connection."""
        found = b""
        try:
            while part := self.sock.recv(1 << 16):
                found += part
        except ConnectionResetError:
            pass
        return found

    def answer(self) -> bytes:
        """One answer that has a Content-Length."""
        found = b""
        while b"\r\n\r\n" not in found:
            part = self.sock.recv(1 << 16)
            assert part, found
            found += part
        head, _, body = found.partition(b"\r\n\r\n")
        (length,) = [int(x[15:]) for x in head.split(b"\r\n") if x.startswith(b"content-length:")]
        while len(body) < length:
            body += self.sock.recv(1 << 16)
        return head + b"\r\n\r\n" + body

    def ask(self, path: str = "/", *headers: str) -> Any:
        """Send a GET; returns the answer's JSON."""
        self.send(get(path, *headers))
        return json.loads(self.answer().partition(b"\r\n\r\n")[2])


def get(path: str = "/", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"GET {path} HTTP/{version}", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def post(*headers: str, path: str = "/", body: bytes = b"") -> bytes:
    return get(path, *headers).replace(b"GET", b"POST", 1) + body


def status_of(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:200]
    return int(answer[9:12])


def error_of(answer: bytes) -> tuple[int, str]:
    """Status and code of a refusal."""
    return status_of(answer), json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


@contextmanager
def serving(
    app: Any = None, *, bounds: EdgeBounds | None = None, proxies: tuple[str, ...] = ()
) -> Iterator[Served]:
    """A running server in a thread of its own."""
    app, bounds = app or Application(), bounds or EdgeBounds()
    config = configured(
        app,
        bounds,
        Proxies(proxies),
        Census(bounds.connections, bounds.connections_per_address),
        lifespan="off",
        ws=SocketConnection,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )
    server = PromptServer(config)
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(sockets=[listener]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    served = Served(app, listener.getsockname()[1], server)
    try:
        served.until(lambda: server.started)
        yield served
    finally:
        server.should_exit = server.force_exit = True
        thread.join(TIMEOUT_S)
        listener.close()
    assert not thread.is_alive()
