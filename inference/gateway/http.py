"""The OpenAI-compatible HTTP edge, as a plain ASGI application.

Not a Django view: a streamed token costs one `send` here and no thread, middleware or response
object. Channels' router mounts it beside Django; everything it needs is handed to it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from inference.errors import (
    ClientDisconnected,
    InferenceError,
    InvalidApiKey,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    RequestTimeout,
    UnknownModel,
)
from inference.gateway import idempotency
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.hub import new_id
from inference.gateway.idempotency import Idempotency, Recording
from inference.gateway.stream import Stream
from inference.grants import (
    Answers,
    Claim,
    Directory,
    Grant,
    KeptAnswer,
    Limiter,
    ModelCard,
    Reservation,
    Room,
)
from inference.link.wire import Delta, Done
from inference.operations import openai

log = structlog.get_logger(__name__)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

BODY_TIMEOUT_S = 60.0
"""A client that takes longer to send its body is cut off."""
DISCARD_FACTOR = 8
"""A body this many times over the limit is no longer read to its end before the 413: clients that
write before they read would miss the answer otherwise."""

JSON: Headers = [(b"content-type", b"application/json")]
EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
REPLAYED = (b"idempotent-replayed", b"true")


class Exchange:
    """One HTTP request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.id = new_id()
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.status = 0
        self.started_at = time.time()
        self.grant: Grant | None = None
        self.model: str | None = None
        self.reservation: Reservation | None = None
        """For the `x-ratelimit` headers."""
        self._began = time.monotonic()
        self._receive, self._send = receive, send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def bearer(self) -> str:
        """The API key.

        Raises:
            InvalidApiKey: there is none.
        """
        scheme, _, secret = self._headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not secret.strip():
            raise InvalidApiKey(
                "You didn't provide an API key: send it as `Authorization: Bearer lk_...`."
            )
        return secret.strip().decode("latin-1")

    def idempotency_key(self) -> str | None:
        """The `Idempotency-Key`, if there is one.

        Raises:
            InvalidRequest: it can't be one.
        """
        header = self._headers.get(idempotency.HEADER)
        return None if header is None else idempotency.name_of(header)

    def record(self, recording: Recording) -> None:
        """From now on what is sent goes through the recording."""
        self._send = recording.tee(self._send)

    async def body(self, limit_bytes: int, timeout_s: float = BODY_TIMEOUT_S) -> bytes:
        """The whole request body.

        Raises:
            PayloadTooLarge: it is over the limit.
            RequestTimeout: it did not arrive in time.
            ClientDisconnected: the client went away in the middle of it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await self._body(limit_bytes)
        except TimeoutError:
            raise RequestTimeout(
                f"The request body did not arrive within {timeout_s:g} s."
            ) from None

    async def _body(self, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size, more = 0, True
        while more and size <= limit_bytes * DISCARD_FACTOR:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size <= limit_bytes:
                parts.append(part)
        if size > limit_bytes:
            raise PayloadTooLarge(
                f"The request body is over this server's limit of {limit_bytes} bytes."
            )
        return b"".join(parts)

    async def disconnected(self) -> None:
        """Wait until the client goes away. Only once the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def begin(self, status: int, headers: Headers) -> None:
        """Write the status and the headers that every answer has."""
        self.status = status
        common = [
            (b"x-request-id", f"req_{self.id}".encode()),
            (b"openai-processing-ms", str(round(self.elapsed_s * 1000)).encode()),
            *_ratelimit_headers(self.reservation),
        ]
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *common]}
        )

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Write a part of the body; `more=False` ends the answer."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def reply(self, status: int, data: bytes, headers: Headers = ()) -> None:
        """Write a whole JSON answer."""
        length = (b"content-length", str(len(data)).encode())
        await self.begin(status, [*JSON, length, *headers])
        await self.write(b"" if self.method == "HEAD" else data, more=False)

    async def replay(self, kept: KeptAnswer) -> None:
        """Write the answer of an earlier request, under that one's id."""
        self.id = kept.request_id
        if kept.content_type.startswith("application/json"):
            return await self.reply(200, kept.body, [REPLAYED])
        await self.begin(200, [*EVENT_STREAM, REPLAYED])
        await self.write(kept.body, more=False)

    async def fail(self, error: InferenceError) -> None:
        """Answer with an error, as far as an answer can still be given."""
        if isinstance(error, ClientDisconnected):
            self.status = self.status or error.http_status
        elif self.status:
            await self.write(openai.error_event(error), more=False)
        else:
            await self.reply(error.http_status, openai.error_body(error), _retry_headers(error))


def _retry_headers(error: InferenceError) -> Headers:
    """When to try again, or that it can't help: OpenAI's SDKs would after any 409 and 429."""
    if error.retry_after_s is not None:
        return [(b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode())]
    return [(b"x-should-retry", b"false")] if error.http_status < 500 else []


def _ratelimit_headers(reservation: Reservation | None) -> Headers:
    if reservation is None:
        return ()
    return [
        header for what, room in reservation.rooms.items() for header in _room_headers(what, room)
    ]


def _room_headers(what: str, room: Room) -> Headers:
    figures = {"limit": room.limit, "remaining": room.remaining, "reset": openai.span(room.reset_s)}
    return [
        (f"x-ratelimit-{figure}-{what}".encode(), str(value).encode())
        for figure, value in figures.items()
    ]


class OpenAIServer:
    """The ASGI application under `/v1/`."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        directory: Directory,
        limiter: Limiter,
        *,
        answers: Answers,
        max_body_bytes: int,
        body_timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        """`body_timeout_s` bounds the arrival of a request's body."""
        self._dispatcher, self._directory, self._limiter = dispatcher, directory, limiter
        self._idempotency = Idempotency(answers, wait_s=dispatcher.timeout_s)
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        error: InferenceError | None = None
        try:
            await self._dispatch(exchange)
        except InferenceError as caught:
            error = caught
        except Exception:
            log.exception("request_crashed", request_id=exchange.id)
            error = InferenceError("The server had an error while it processed your request.")
        if error is not None:
            await self._look(exchange)
            await exchange.fail(error)
        log.info(
            "request",
            request_id=exchange.id,
            method=exchange.method,
            path=exchange.path,
            status=exchange.status,
            ms=round(exchange.elapsed_s * 1000, 1),
            **({"error": error.code} if error else {}),
        )

    async def _dispatch(self, exchange: Exchange) -> None:
        path = exchange.path
        if path == "/v1/chat/completions":
            await self._generate(exchange, "chat")
        elif path == "/v1/completions":
            await self._generate(exchange, "completion")
        elif path == "/v1/models":
            await self._list_models(exchange)
        elif path.startswith("/v1/models/"):
            await self._show_model(exchange, path.removeprefix("/v1/models/"))
        else:
            raise NotFound(f"Unknown address: {exchange.method} {path}.")

    # --- models ----------------------------------------------------------------------------------

    async def _list_models(self, exchange: Exchange) -> None:
        _allow(exchange, "GET", "HEAD")
        grant = await self._grant(exchange)
        await self._look(exchange)
        cards = [_card(card) for card in await self._directory.models(grant)]
        await exchange.reply(200, msgspec.json.encode({"object": "list", "data": cards}))

    async def _show_model(self, exchange: Exchange, name: str) -> None:
        _allow(exchange, "GET", "HEAD")
        grant = await self._grant(exchange)
        await self._look(exchange)
        await self._directory.resolve(grant, name)
        cards = {card.id: card for card in await self._directory.models(grant)}
        base_name = name.partition("@")[0]
        if base_name not in cards:
            raise UnknownModel(f"The model `{name}` has no live version.", param="model")
        card = _card(cards[base_name]) | {"id": name}
        await exchange.reply(200, msgspec.json.encode(card))

    # --- generation ------------------------------------------------------------------------------

    async def _generate(self, exchange: Exchange, kind: openai.Kind) -> None:
        _allow(exchange, "POST")
        grant = await self._grant(exchange)
        body = await exchange.body(self._max_body_bytes, self._body_timeout_s)
        call = openai.parse(kind, body)
        exchange.model = call.model
        if (name := exchange.idempotency_key()) is None:
            await self._answer(exchange, call, body)
        else:
            digest = idempotency.digest_of(exchange.path, body)
            claim = Claim(grant.key_id, name, digest, exchange.id)
            await self._answer_once(exchange, claim, call, body)

    async def _answer_once(
        self, exchange: Exchange, claim: Claim, call: openai.Call, body: bytes
    ) -> None:
        """Generate the answer, or give the one that the idempotency key stands for."""
        async with self._idempotency.turn(claim, exchange.disconnected()) as turn:
            if isinstance(turn, KeptAnswer):
                await self._grant(exchange)  # again: the turn may have been long in coming
                await self._look(exchange)
                log.info("answer_replayed", request_id=exchange.id, of=turn.request_id)
                await exchange.replay(turn)
            else:
                exchange.record(turn)
                await self._answer(exchange, call, body, goes_on=True)

    async def _answer(
        self, exchange: Exchange, call: openai.Call, body: bytes, *, goes_on: bool = False
    ) -> None:
        """Generate the answer. One that `goes_on` does so when its client went away."""
        grant = await self._grant(exchange)  # again: body and turn may have been long in coming
        async with self._dispatcher.generation(exchange.id, grant, call, body) as stream:
            exchange.reservation = stream.reservation
            watcher = None if goes_on else asyncio.create_task(_end_on_disconnect(exchange, stream))
            answer = openai.Answer(call, exchange.id, int(exchange.started_at))
            try:
                await (_write_stream if call.stream else _write_whole)(exchange, stream, answer)
            finally:
                if watcher is not None:
                    watcher.cancel()

    async def _look(self, exchange: Exchange) -> None:
        """What is left of the limits that the request met, where nothing was reserved."""
        if exchange.grant is None or exchange.reservation is not None:
            return
        limits = exchange.grant.limits
        with suppress(InferenceError):  # the headers are not worth an answer
            if exchange.model is not None:
                with suppress(InferenceError):
                    limits += (await self._directory.resolve(exchange.grant, exchange.model)).limits
            exchange.reservation = await self._limiter.look(limits)

    async def _grant(self, exchange: Exchange) -> Grant:
        grant = await self._directory.authenticate(exchange.bearer())
        if "inference" not in grant.scopes:
            raise PermissionDenied("This API key lacks the scope `inference`.")
        exchange.grant = grant
        return grant


def _allow(exchange: Exchange, *methods: str) -> None:
    if exchange.method not in methods:
        raise MethodNotAllowed(f"{exchange.path} takes {' or '.join(methods)} only.")


def _card(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "root": card.root,
    }


async def _end_on_disconnect(exchange: Exchange, stream: Stream) -> None:
    await exchange.disconnected()
    stream.end(ClientDisconnected())


async def _write_whole(exchange: Exchange, stream: Stream, answer: openai.Answer) -> None:
    parts: list[str] = []
    while isinstance(news := await stream.read(), Delta):
        parts.append(news.text)
    body, limited = news.response, stream.limited
    if body is None:
        body = answer.whole("".join(parts), _finish_reason(news), news.usage, limited)
    elif limited is not None:
        body = openai.explained(body, limited)
    await exchange.reply(200, body)


async def _write_stream(exchange: Exchange, stream: Stream, answer: openai.Answer) -> None:
    """Headers go out with the first news, so that an early failure still gets its HTTP status."""
    news = await stream.read()
    await exchange.begin(200, EVENT_STREAM)
    whole_chunks = isinstance(news, Delta) and bool(news.chunks)
    opening = b"" if whole_chunks else answer.opening()
    while isinstance(news, Delta):
        chunks = b"".join(map(answer.chunk, news.chunks)) or (
            answer.text(news.text) if news.text else b""
        )
        if opening or chunks:
            await exchange.write(opening + chunks)
        opening = b""
        news = await stream.read()
    closing = opening + answer.closing(_finish_reason(news), stream.limited)
    await exchange.write(closing + answer.ending(news.usage), more=False)


def _finish_reason(done: Done) -> str:
    return done.finish_reason or "stop"


class Health:
    """`/healthz`: this process runs. `/readyz`: everything it needs is there, or what is not."""

    def __init__(self, checks: dict[str, Callable[[], Awaitable[bool]]]) -> None:
        """`checks` by the name of what they check."""
        self._checks = checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        if exchange.path == "/healthz":
            return await exchange.reply(200, b'{"status":"ok"}')
        found = {name: await check() for name, check in self._checks.items()}
        ready = all(found.values())
        body = {"status": "ready" if ready else "not ready", "checks": found}
        await exchange.reply(200 if ready else 503, msgspec.json.encode(body))


def parse_json(kind: type[Any], body: bytes) -> Any:
    """Decode a small trusted-shape body.

    Raises:
        InvalidRequest: it is not of that shape.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid: {error}.") from None
