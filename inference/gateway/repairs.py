"""Asks once more for an answer that does not have the structure that was asked for.

A tenant may choose that (`Grant.repairs`), and a request may with the header `Structure-Repair`.
Only whole answers over HTTP are repaired: of a stream the client has the malformed answer already.

The client gets the second answer (`second_answers`) with the header `Structure-Repair`, which says
whether that answer is `repaired`. If there is none it gets the first one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import structlog

from inference.errors import InferenceError, InvalidRequest
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.exchanges import answer
from inference.gateway.exchanges.answer import framing_of
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.gateway.requests.stream import Stream
from inference.gateway.second_answers import SecondAnswers, with_usage_of
from inference.interfaces.directory import Grant
from inference.operations.operation import Call
from inference.operations.structure import StructureOutcome

log = structlog.get_logger(__name__)

HEADER = b"structure-repair"
ONCE, NEVER = b"once", b"never"
REPAIRED, FAILED = (HEADER, b"repaired"), (HEADER, b"failed")
NOT_REPAIRED = nullcontext()
WAIT_S = 5.0
"""How long an answer waits for its check; then it is sent as it is."""


class Repairs:
    """Repairs the answers of one gateway process."""

    def __init__(self, dispatcher: Dispatcher, seconds: SecondAnswers) -> None:
        self._dispatcher, self._seconds = dispatcher, seconds

    def copied(
        self, exchange: InferenceExchange, grant: Grant, call: Call
    ) -> AbstractContextManager[Call | None]:
        """A copy of the call to ask with again, whose body has its room during the block; None if
        the answer is not to be repaired, or there is no room.

        Raises:
            InvalidRequest: the header is wrong.
        """
        if not _is_wanted(exchange, grant) or call.stream or call.structure is None:
            return NOT_REPAIRED
        return self._copied(grant, call)

    @contextmanager
    def _copied(self, grant: Grant, call: Call) -> Iterator[Call | None]:
        room = self._dispatcher.structures.room
        with room.holding(grant.tenant_id, len(call.body)) as held:
            yield copy.copy(call) if held else None

    async def write(self, exchange: InferenceExchange, call: Call, stream: Stream) -> None:
        """Write one JSON body, as `answer.write_whole`: that of the answer in the stream, or of a
        second one. Takes the call's body."""
        first = await answer.whole(stream, partial(framing_of, stream, call), await stream.read())
        outcome = await _outcome_of(stream)
        if outcome is not StructureOutcome.MALFORMED or exchange.is_disconnected:
            return await answer.reply_whole(exchange, first)
        try:
            body, conforms = await self._again(exchange, call)
        except InferenceError as error:
            log.info("structure_not_repaired", request_id=exchange.id, error=error.code)
            return await answer.reply_whole(exchange, first, [FAILED])
        body = with_usage_of(first, body)
        await answer.reply_whole(exchange, body, [REPAIRED if conforms else FAILED])

    async def _again(self, exchange: InferenceExchange, call: Call) -> tuple[bytes, bool]:
        """Ask again; returns the answer, and whether it conforms. Raises InferenceError."""
        first_id = exchange.id
        async with self._seconds.asked(exchange, call) as (body, stream):
            outcome = await _outcome_of(stream)
        log.info("structure_repaired", request_id=exchange.id, of=first_id, outcome=outcome)
        return body, outcome is StructureOutcome.CONFORMED


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
