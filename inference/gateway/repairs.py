"""Asks once more for an answer that does not have the structure that was asked for.

A tenant may choose that (`Grant.repairs`), and a request may with the header `Structure-Repair`.
Only whole answers over HTTP are repaired: of a stream the client has the malformed answer already.

The second request is one of its own, with an id, a reservation and a bill. The client gets its
answer, with its id and the tokens of both, and the header `Structure-Repair`, which says whether
that answer is `repaired`. If there is no second answer the client gets the first one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import structlog

from inference.errors import InferenceError, InvalidRequest
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.exchanges import answer
from inference.gateway.exchanges.answer import framing_of
from inference.gateway.exchanges.callers import Callers
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.gateway.requests.stream import Stream
from inference.ids import new_id
from inference.interfaces.directory import Grant
from inference.operations.operation import Call
from inference.operations.structure import StructureOutcome

log = structlog.get_logger(__name__)

HEADER = b"structure-repair"
ONCE, NEVER = b"once", b"never"
REPAIRED, FAILED = (HEADER, b"repaired"), (HEADER, b"failed")
WAIT_S = 5.0
"""How long an answer waits for its check; then it is sent as it is."""
_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Repairs:
    """Repairs the answers of one gateway process."""

    def __init__(self, dispatcher: Dispatcher, callers: Callers) -> None:
        self._dispatcher, self._callers = dispatcher, callers

    @contextmanager
    def copied(
        self, exchange: InferenceExchange, grant: Grant, call: Call
    ) -> Iterator[Call | None]:
        """A copy of the call to ask with again, whose body has its room during the block; None if
        the answer is not to be repaired, or there is no room.

        Raises:
            InvalidRequest: the header is wrong.
        """
        room = self._dispatcher.structures.room
        if not _is_wanted(exchange, grant) or call.stream or call.structure is None:
            yield None
            return
        with room.holding(grant.tenant_id, len(call.body)) as held:
            yield copy.copy(call) if held else None

    async def write(self, exchange: InferenceExchange, call: Call, stream: Stream) -> None:
        """Write one JSON body, as `answer.write_whole`: that of the answer in the stream, or of a
        second one. Takes the call's body."""
        first = await answer.whole(stream, partial(framing_of, stream, call), await stream.read())
        outcome = await _outcome_of(stream)
        if outcome is not StructureOutcome.MALFORMED or exchange.is_gone:
            return await answer.reply_whole(exchange, first)
        try:
            body, conforms = await self._again(exchange, call)
        except InferenceError as error:
            log.info("structure_not_repaired", request_id=exchange.id, error=error.code)
            return await answer.reply_whole(exchange, first, [FAILED])
        body = with_usage_of(first, body)
        await answer.reply_whole(exchange, body, [REPAIRED if conforms else FAILED])

    async def _again(self, exchange: InferenceExchange, call: Call) -> tuple[bytes, bool]:
        """Ask again, as the exchange's own request, and record its first one; returns the answer
        and whether that conforms.

        Raises:
            InferenceError: there is no second answer; the exchange still has its first request.
        """
        grant = await self._callers.identify(exchange)
        first = exchange.id, exchange.stream, exchange.reservation
        asking = self._dispatcher.generation(
            new_id(), grant, call, trace=exchange.span, headers=exchange.headers
        )
        async with asking as stream:
            exchange.id, exchange.stream = stream.id, stream
            exchange.reservation = stream.request.reservation
            try:
                framed = partial(framing_of, stream, call)
                body = await answer.whole(stream, framed, await stream.read())
            except InferenceError as error:
                self._record(exchange, stream, error)
                exchange.id, exchange.stream, exchange.reservation = first
                raise
            outcome = await _outcome_of(stream)
        assert first[1] is not None
        self._record(exchange, first[1], None)
        log.info("structure_repaired", request_id=stream.id, of=first[0], outcome=outcome)
        return body, outcome is StructureOutcome.CONFORMED

    def _record(
        self, exchange: InferenceExchange, stream: Stream, error: InferenceError | None
    ) -> None:
        """Record the one of both requests that the client does not get."""
        call = exchange.call
        asked = exchange.asked(None if call is None else call.operation)
        own = msgspec.structs.replace(asked, id=stream.id, stream=stream, status=None, span=None)
        self._dispatcher.records.ended(own, error)


def _is_wanted(exchange: InferenceExchange, grant: Grant) -> bool:
    given = exchange.headers.get(HEADER)
    if given is None:
        return grant.repairs
    if given not in (ONCE, NEVER):
        raise InvalidRequest("The header `Structure-Repair` must be `once` or `never`.")
    return given == ONCE


async def _outcome_of(stream: Stream) -> StructureOutcome | None:
    """What the check of its answer finds; None if it has none, or it takes too long."""
    if stream.structure is None:
        return None
    loop = asyncio.get_running_loop()
    known: asyncio.Future[StructureOutcome | None] = loop.create_future()

    def tell(outcome: StructureOutcome | None) -> None:
        if not known.done():
            known.set_result(outcome)

    stream.structure.on_outcome(tell)
    try:
        async with asyncio.timeout(WAIT_S):
            return await known
    except TimeoutError:
        return None


def with_usage_of(first: bytes, second: bytes) -> bytes:
    """The second answer, with the tokens of both as its usage."""
    fields, usage = _fields.decode(second), _fields.decode(first).get("usage")
    if usage is None or "usage" not in fields:
        return second
    both = _added(msgspec.json.decode(usage), msgspec.json.decode(fields["usage"]))
    return _json(fields | {"usage": both})


def _added(one: Any, more: Any) -> Any:
    """The sum of two numbers, or of those of the same names; else the second value."""
    if isinstance(one, Mapping) and isinstance(more, Mapping):
        return {name: _added(one.get(name), value) for name, value in more.items()}
    return one + more if type(one) is type(more) is int else more
