"""Writes the answer of one stream to its client, as the operation frames it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from inference.gateway.exchanges.exchange import EVENT_STREAM, Headers
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.gateway.requests.stream import Stream
from inference.link.wire import Delta, Done
from inference.operations.operation import Call, Framing

CHUNKS_AT_ONCE = 256
"""Chunks framed per turn of the event loop, which takes well under a millisecond; a slow reader may
find thousands waiting."""


Framed = Callable[[], Framing]
"""Makes the framing. Called once an engine has the request, as the framing names its revision."""


def framing_of(stream: Stream, call: Call) -> Framing:
    """The framing of the call's answer in this stream."""
    request = stream.request
    return call.operation.framing(call, request.id, int(request.started_at), request.revision)


async def write_whole(
    exchange: InferenceExchange, stream: Stream, framed: Framed, headers: Headers = ()
) -> None:
    """Write one JSON body, once the engine is done."""
    await reply_whole(exchange, await whole(stream, framed, await stream.read()), headers)


async def reply_whole(exchange: InferenceExchange, body: bytes, headers: Headers = ()) -> None:
    """Write a whole answer, which is stored first if it is to be."""
    if exchange.storage is not None:
        body = await exchange.storage.whole(exchange.id, body)
    await exchange.reply(200, body, headers)


async def whole(stream: Stream, framed: Framed, news: Delta | Done) -> bytes:
    """The JSON body of an answer; `news` is what was read from the stream first."""
    parts: list[str] = []
    while isinstance(news, Delta):
        parts.append(news.text)
        news = await stream.read()
    framing = framed()
    if news.response is None:
        text, reason = "".join(parts), _finish_reason(news)
        return framing.whole(text, reason, news.usage, stream.request.limited)
    return framing.response(news.response, stream.request.limited)


async def write_stream(
    exchange: InferenceExchange, stream: Stream, framed: Framed, headers: Headers = ()
) -> None:
    """Write server-sent events. Headers go out with the first delta, so that an early failure still
    gets its HTTP status."""
    news, framing = await stream.read(), framed()
    exchange.failed = framing.failed
    await exchange.begin(200, [*EVENT_STREAM, *headers])
    opens = not (isinstance(news, Delta) and news.chunks)
    while isinstance(news, Delta):
        if news.prompt_tokens:
            framing.counted(news.prompt_tokens, news.cached_tokens)
        opening, opens = framing.opening() if opens else b"", False
        if news.chunks:
            await _write_chunks(exchange, framing, news, opening)
        else:
            framing.generated(news.tokens)
            events = opening + framing.text(news.text) if news.text else opening
            if events:
                await exchange.write(events)
        news = await stream.read()
    opening = framing.opening() if opens else b""
    closing = opening + framing.closing(_finish_reason(news), stream.request.limited)
    ending = framing.ending(news.usage)
    if exchange.storage is not None:
        ending = await exchange.storage.ending(exchange.id, ending)
    await exchange.write(closing + ending, more=False)


async def _write_chunks(
    exchange: InferenceExchange, framing: Framing, news: Delta, opening: bytes
) -> None:
    """Write the opening and the delta's chunks as events, CHUNKS_AT_ONCE at a time. Its tokens
    count from its last chunk on: which came with which is not known, and the first of a chat has
    none."""
    last = len(news.chunks) - 1
    for start in range(0, len(news.chunks), CHUNKS_AT_ONCE):
        events = [opening]
        for i, chunk in enumerate(news.chunks[start : start + CHUNKS_AT_ONCE], start):
            if i == last:
                framing.generated(news.tokens)
            events.append(framing.chunk(chunk))
        await exchange.write(b"".join(events))
        opening = b""
        if len(news.chunks) > CHUNKS_AT_ONCE:
            await asyncio.sleep(0)


def _finish_reason(done: Done) -> str:
    return done.finish_reason or "stop"
