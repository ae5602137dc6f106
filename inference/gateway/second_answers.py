"""A second request in the place of one whose whole answer the client is not to get.

It is a request of its own, with an id, a reservation and a bill. The client gets its answer, with
its id and the tokens of both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from inference.errors import InferenceError
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.exchanges import answer
from inference.gateway.exchanges.answer import framing_of
from inference.gateway.exchanges.callers import Callers
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.gateway.requests.stream import Stream
from inference.ids import new_id
from inference.operations.operation import Call

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class SecondAnswers:
    """Asks for them, at one gateway process."""

    def __init__(self, dispatcher: Dispatcher, callers: Callers) -> None:
        self._dispatcher, self._callers = dispatcher, callers

    @asynccontextmanager
    async def asked(
        self, exchange: InferenceExchange, call: Call
    ) -> AsyncIterator[tuple[bytes, Stream]]:
        """The answer to the call, with its stream, as the exchange's own from now on; its first
        request is recorded at the end. Takes the call's body.

        Raises:
            InferenceError: there is no second answer; the exchange still has its first request.
        """
        grant = await self._callers.identify(exchange)
        first = exchange.id, exchange.stream, exchange.reservation, exchange.call
        asking = self._dispatcher.generation(
            new_id(), grant, call, trace=exchange.span, headers=exchange.headers
        )
        async with asking as stream:
            exchange.id, exchange.stream = stream.id, stream
            exchange.reservation, exchange.call = stream.request.reservation, call
            try:
                framed = partial(framing_of, stream, call)
                body = await answer.whole(stream, framed, await stream.read())
            except InferenceError as error:
                self._record(exchange, call, stream, error)
                exchange.id, exchange.stream, exchange.reservation, exchange.call = first
                raise
            yield body, stream
        assert first[1] is not None
        self._record(exchange, first[3], first[1], None)

    def _record(
        self,
        exchange: InferenceExchange,
        call: Call | None,
        stream: Stream,
        error: InferenceError | None,
    ) -> None:
        """Record the one of both requests that the client does not get."""
        asked = exchange.asked(None if call is None else call.operation)
        own = msgspec.structs.replace(
            asked, id=stream.id, call=call, stream=stream, status=None, span=None
        )
        self._dispatcher.records.ended(own, error)


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
