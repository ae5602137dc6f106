"""Asks the second option of a cascade for an answer of which the first one is not sure.

A cascade is a route (`TrafficRoute.sure_from`). Its first option answers whole chats with one
choice, and is asked for the log-probabilities of its tokens; if their mean is below the route's
threshold, the client gets the second option's answer (`second_answers`), or the first one's if
there is none. Of a stream the client would have the first answer already, and what has an
idempotency key may be finished by another gateway: these, all other operations, and what finds no
room are answered by the route's best option, as all requests are while it is off.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from statistics import fmean
from typing import NamedTuple

import msgspec
import structlog

from inference.errors import InferenceError
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.exchanges import answer
from inference.gateway.exchanges.answer import framing_of
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.gateway.loop_iteration import pause
from inference.gateway.requests.stream import Stream
from inference.gateway.second_answers import SecondAnswers, with_usage_of
from inference.interfaces.directory import Directory, Grant, ResolvedTarget, TrafficRoute
from inference.operations.chat import CHAT
from inference.operations.operation import Call
from inference.routes import is_sure

log = structlog.get_logger(__name__)

_json = msgspec.json.Encoder().encode
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_several = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


class _Token(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None


class _SureChoice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _SureAnswer(msgspec.Struct):
    choices: list[_SureChoice]


_answers = msgspec.json.Decoder(_SureAnswer)


class CascadeOptions(NamedTuple):
    """The route of a cascade, and what its options resolve to."""

    route: TrafficRoute
    first: ResolvedTarget
    second: ResolvedTarget


class Cascade(NamedTuple):
    """The calls to both options; `shows` says whether the client asked for log-probabilities."""

    first: Call
    second: Call
    sure_from: float
    shows: bool


class Cascades:
    """Performs the cascades of one gateway process."""

    def __init__(
        self, dispatcher: Dispatcher, directory: Directory, seconds: SecondAnswers
    ) -> None:
        self._dispatcher, self._directory, self._seconds = dispatcher, directory, seconds

    async def options(self, grant: Grant, call: Call) -> CascadeOptions | None:
        """What may answer the call, if its model is a cascade that may be used for it."""
        if call.operation is not CHAT or call.stream or call.workload.choices > 1:
            return None
        route = await self._directory.cascade(grant, call.model)
        if route is None:
            return None
        first, second = route.options
        return None if first is None or second is None else CascadeOptions(route, first, second)

    @asynccontextmanager
    async def begun(
        self, grant: Grant, call: Call, options: CascadeOptions
    ) -> AsyncIterator[Cascade | None]:
        """The cascade of the call, whose second body has its room during the block; None if there
        is no room. Takes the call's body if there is some."""
        route, first, second = options
        with self._dispatcher.structures.room.holding(grant.tenant_id, len(call.body)) as held:
            if not held:
                yield None
                return
            await pause(len(call.body))
            shows, later = call.workload.logprobs > 0, copy.copy(call)
            body = call.take_body()
            asked = CHAT.parse(body if shows else with_logprobs(body))
            for one, option in ((asked, first), (later, second)):
                one.model, one.route = option.model, route.name
            assert route.sure_from is not None
            yield Cascade(asked, later, route.sure_from, shows)

    async def write(self, exchange: InferenceExchange, cascade: Cascade, stream: Stream) -> None:
        """Write one JSON body, as `answer.write_whole`: that of the answer in the stream if it is
        sure, or else the second option's."""
        framed = partial(framing_of, stream, cascade.first)
        first = await answer.whole(stream, framed, await stream.read())
        body = first if cascade.shows else without_logprobs(first)
        if not exchange.is_disconnected and not is_sure(mean_logprob(first), cascade.sure_from):
            try:
                async with self._seconds.asked(exchange, cascade.second) as (second, _):
                    body = with_usage_of(first, second)
            except InferenceError as error:
                log.info("cascade_not_continued", request_id=exchange.id, error=error.code)
        await answer.reply_whole(exchange, body)


def with_logprobs(body: bytes) -> bytes:
    """The body, a JSON object with fields, with log-probabilities asked for: the last of duplicate
    fields counts."""
    fields, _, _ = body.rpartition(b"}")
    return fields + b',"logprobs":true}'


def mean_logprob(body: bytes) -> float | None:
    """The mean log-probability of the tokens of a chat with one choice; None if it has none, as a
    call of a tool."""
    (choice,) = _answers.decode(body).choices
    tokens = choice.logprobs and choice.logprobs.content
    return fmean(token.logprob for token in tokens) if tokens else None


def without_logprobs(body: bytes) -> bytes:
    """A chat as it is if nobody asks for log-probabilities."""
    fields = _objects.decode(body)
    choices = [one | {"logprobs": None} for one in _several.decode(fields["choices"])]
    return _json(fields | {"choices": choices})
