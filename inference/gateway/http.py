"""The HTTP edge of inference: the ASGI application under `/v1/`, and at the few paths outside of it
that vLLM's own server has. The path of a request through it:

1. The exchange is routed by its path, to an operation or to the models.
2. The caller is identified from the headers, before the body is read (`exchanges/callers.py`); a
   tenant that sends mostly invalid requests is slowed (`pacing.py`).
3. The body is counted as it arrives (`operations.bodies.shape`); the operation parses it into a
   `Call`.
4. With an `Idempotency-Key` the answer may exist already, or run on an engine whose gateway is
   gone (`idempotency.py`).
5. The dispatcher resolves the model, reserves and submits, which gives a `Stream`
   (`dispatcher.py`, `hub.py`).
6. What the engine sends is written as the operation frames it (`exchanges/answer.py`).

The gateway's routes are in `gateway.planes.inference`; all dependencies are passed in.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from inference.errors import (
    ClientDisconnected,
    InferenceError,
    NotFound,
    RequestError,
    Unavailable,
)
from inference.gateway import idempotency, models
from inference.gateway.cascades import Cascade, Cascades
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.exchanges import answer
from inference.gateway.exchanges.bodies import Bodies
from inference.gateway.exchanges.callers import Callers
from inference.gateway.exchanges.exchange import BODY_TIMEOUT_S, Headers, Receive, Scope, Send
from inference.gateway.exchanges.inference_exchange import REPLAYED, InferenceExchange
from inference.gateway.idempotency import Idempotency, Recording, taken_over
from inference.gateway.lines.background import Background
from inference.gateway.loop_iteration import pause
from inference.gateway.not_served import INSTEAD
from inference.gateway.repairs import Repairs
from inference.gateway.requests.stream import AnswerMissing, Stream
from inference.gateway.second_answers import SecondAnswers
from inference.gateway.stored import conversations, responses
from inference.gateway.stored.conversations import Conversations
from inference.gateway.stored.responses import StoredResponseApi
from inference.interfaces.answers import Answers, Claim, KeptAnswer
from inference.interfaces.directory import Directory, Grant
from inference.interfaces.limiter import Limiter
from inference.interfaces.stored import StoredConversations, StoredResponses
from inference.operations.bodies.shape import BodyShape
from inference.operations.operation import Call, Operation
from inference.operations.registry import OPERATIONS, OperationRegistry
from inference.operations.responses.call import ResponseCall
from inference.tracing import timed

log = structlog.get_logger(__name__)

VLLM_PATHS = sorted(
    path
    for path in {*INSTEAD, *(path for one in OPERATIONS for path in one.also_at)}
    if not path.startswith("/v1/")
)
"""The paths outside of `/v1/`."""
ROUTE = rf"^(v1/|({'|'.join(re.escape(path[1:]) for path in VLLM_PATHS)})$)"
"""A pattern of all paths, without the leading slash."""


class OpenAIServer:
    """The ASGI application."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        directory: Directory,
        limiter: Limiter,
        *,
        answers: Answers,
        stored: StoredResponses,
        conversations: StoredConversations,
        secret: str,
        max_body_bytes: int,
        body_timeout_s: float = BODY_TIMEOUT_S,
        operations: OperationRegistry = OPERATIONS,
        currency: str = "usd",
    ) -> None:
        """Background responses are sealed with `secret`. `body_timeout_s` bounds the arrival of a
        request's body; prices are in `currency`."""
        self._dispatcher, self._operations = dispatcher, operations
        self._callers, self._records = Callers(directory, limiter), dispatcher.records
        self._models = models.ModelList(
            self._callers,
            directory,
            operations,
            engines=dispatcher.engines,
            currency=currency,
        )
        seconds = SecondAnswers(dispatcher, self._callers)
        self._repairs = Repairs(dispatcher, seconds)
        self._cascades = Cascades(dispatcher, directory, seconds)
        self._idempotency = Idempotency(
            answers, wait_s=dispatcher.timeout_s, running=dispatcher.running
        )
        self.bodies = Bodies(max_body_bytes, body_timeout_s)
        self._conversations = Conversations(self._callers, conversations, self.bodies)
        self.responses = StoredResponseApi(
            self._callers,
            stored,
            self._conversations,
            dispatcher.space,
            max_body_bytes=max_body_bytes,
        )
        self.background = Background(stored, directory, dispatcher.space, secret=secret)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = InferenceExchange(scope, receive, send)
        operation = self._operations.at(exchange.path)
        if operation is not None:
            exchange.errors = operation.errors
            exchange.span = self._records.begin(operation, exchange.began, exchange.traceparent)
        error: InferenceError | None = None
        try:
            await self._route(exchange, operation)
        except InferenceError as caught:
            error = caught
        except asyncio.CancelledError:  # the server shuts down and could not wait any longer
            ended = "This gateway was shut down: retry the request."
            await exchange.fail(Unavailable(ended, retry_after_s=1))
            raise
        except Exception:
            log.exception("request_crashed", request_id=exchange.id)
            error = InferenceError("The server had an error while processing your request.")
        if error is not None:
            await self._callers.note_limits(exchange)
            await exchange.fail(error)
        self._records.ended(exchange.asked(operation), error)

    async def _route(self, exchange: InferenceExchange, operation: Operation | None) -> None:
        path = exchange.path
        if operation is not None:
            exchange.require_method("POST")
            await self._serve(exchange, partial(self._answer, operation=operation))
        elif path in (models.PATH, f"{models.PATH}/"):
            await self._models.reply_list(exchange)
        elif path.startswith(f"{models.PATH}/"):
            await self._models.reply_one(exchange)
        elif path.startswith(responses.PATH) and path not in INSTEAD:
            await self._serve(exchange, self.responses.reply)
        elif path == conversations.PATH or path.startswith(f"{conversations.PATH}/"):
            await self._serve(exchange, self._conversations.reply)
        else:
            message = f"Invalid URL: {exchange.method} {path}."
            raise NotFound(f"{message} {INSTEAD.get(path, '')}".rstrip())

    async def _serve(
        self, exchange: InferenceExchange, answer: Callable[[InferenceExchange], Awaitable[None]]
    ) -> None:
        with timed(exchange.span, "authenticate"):
            grant = await self._callers.identify(exchange)
        await self._callers.wait_turn(grant)
        try:
            await answer(exchange)
        except RequestError as error:
            await self._callers.note_invalid(exchange, grant, error)
            raise
        self._callers.note_valid(grant)

    async def _answer(self, exchange: InferenceExchange, operation: Operation) -> None:
        shape = BodyShape(operation.max_numbers)
        # No local name holds the body: only the call does, so it is freed once the engine has it.
        with timed(exchange.span, "read body"):
            call = operation.parse(await self.bodies.read(exchange, shape))
        exchange.call = call
        await pause(len(call.body))
        if (name := exchange.idempotency_key()) is None:
            await self._generate(exchange, call)
        else:
            await self._generate_once(exchange, call, name)

    async def _generate_once(self, exchange: InferenceExchange, call: Call, name: str) -> None:
        """Generate the answer, continue one whose gateway is gone, or replay the one kept for this
        idempotency key."""
        grant = await self._callers.identify(exchange)
        digest = await idempotency.digest_of(exchange.path, call.body)
        claim = Claim(grant.key_id, name, digest, exchange.id)
        done = False
        while not done:
            async with self._idempotency.turn(claim, exchange.disconnected()) as turn:
                if isinstance(turn, KeptAnswer):
                    await self._callers.identify(exchange)
                    await self._callers.note_limits(exchange)
                    log.info("answer_replayed", request_id=exchange.id, of=turn.request_id)
                    await exchange.replay(turn)
                    done = True
                else:
                    exchange.record(turn)
                    done = await self._generate_claimed(exchange, call, turn)

    async def _generate_claimed(
        self, exchange: InferenceExchange, call: Call, turn: Recording
    ) -> bool:
        """Generate the answer, or continue an adopted one; False if that no longer exists."""
        own, claim = exchange.id, turn.claim
        if claim.request_id == own:
            await self._generate(exchange, call, turn)
            return True
        try:
            grant, call = await self._followed(exchange, call)
            adoption = self._dispatcher.adoption(
                claim.request_id, grant, call, turn=claim.turn, trace=exchange.span
            )
            with self.responses.storing(exchange, grant, call):
                async with adoption as stream:
                    log.info("answer_adopted", request_id=own, of=stream.id, turn=claim.turn)
                    await self._write(exchange, call, stream, turn)
        except AnswerMissing:
            exchange.id, exchange.stream, exchange.reservation = own, None, None
            turn.give_back()
            return False
        except BaseException:
            if exchange.stream is None:  # the engine still has the answer, for the next request
                turn.give_back()
            raise
        return True

    async def _generate(
        self, exchange: InferenceExchange, call: Call, recording: Recording | None = None
    ) -> None:
        """Generate the answer. With a recording it is generated even after its client went away."""
        asked = call
        grant, call = await self._followed(exchange, call)
        if isinstance(call, ResponseCall) and call.background:
            return await self._queue(exchange, call, recording)
        if call is not asked:
            asked.take_body()
        if recording is not None:
            return await self._answer_with(exchange, grant, call, recording)
        options = await self._cascades.options(grant, call)
        if options is None:
            return await self._answer_with(exchange, grant, call)
        async with self._cascades.begun(grant, call, options) as cascade:
            if cascade is not None:
                exchange.call = call = cascade.first
            await self._answer_with(exchange, grant, call, cascade=cascade)

    async def _answer_with(
        self,
        exchange: InferenceExchange,
        grant: Grant,
        call: Call,
        recording: Recording | None = None,
        *,
        cascade: Cascade | None = None,
    ) -> None:
        """Generate the answer to the call, perhaps as the first one of a cascade."""
        generation = self._dispatcher.generation(
            exchange.id,
            grant,
            call,
            trace=exchange.span,
            adoptable=recording is not None,
            headers=exchange.headers,
        )
        with (
            self.responses.storing(exchange, grant, call),
            self._repairs.copied(exchange, grant, call) as again,
        ):
            async with generation as stream:
                watcher = None
                if recording is None:
                    watcher = asyncio.create_task(_end_on_disconnect(exchange, stream))
                try:
                    await self._write(exchange, call, stream, recording, again, cascade)
                finally:
                    if watcher is not None:
                        watcher.cancel()

    async def _queue(
        self, exchange: InferenceExchange, call: ResponseCall, recording: Recording | None
    ) -> None:
        """Queue the response to run in the background, and answer with its current state. Queueing
        counts as a request by itself, because the response may be cancelled before it runs."""
        grant = await self._callers.identify(exchange)
        await self._callers.count(exchange, grant)
        once = "" if recording is None else idempotency.once(recording.claim)
        id = await self.background.queue(grant, call, exchange.id, once)
        body = await self.responses.current(grant, id)
        await exchange.reply(200, body)

    async def _followed(self, exchange: InferenceExchange, call: Call) -> tuple[Grant, Call]:
        """The caller's current grant, and the call with the earlier items that it continues."""
        grant = await self._callers.identify(exchange)
        found = await self.responses.followed(grant, call)
        if found is not call:
            exchange.call, grant = found, await self._callers.identify(exchange)
        return grant, found

    async def _write(
        self,
        exchange: InferenceExchange,
        call: Call,
        stream: Stream,
        recording: Recording | None,
        again: Call | None = None,
        cascade: Cascade | None = None,
    ) -> None:
        """Write the stream's answer, until it ends or another gateway takes it over. `again` asks
        for it once more if it is to be repaired; an answer of a cascade is not."""
        adopted = stream.id != exchange.id
        exchange.id, exchange.stream = stream.id, stream
        exchange.reservation = stream.request.reservation
        if adopted:  # another gateway made the reservation, so what is left is not known here
            await self._callers.note_rooms(exchange)

        framed = partial(answer.framing_of, stream, call)
        replayed: Headers = [REPLAYED] if adopted else ()
        if recording is not None:
            recording.on_taken_over = partial(stream.end, taken_over(), handed_over=True)
        try:
            if call.stream:
                # In a task of its own: each token then resumes three coroutines instead of fifteen.
                await asyncio.create_task(answer.write_stream(exchange, stream, framed, replayed))
            elif cascade is not None:
                await self._cascades.write(exchange, cascade, stream)
            elif again is not None:
                await self._repairs.write(exchange, again, stream)
            else:
                await answer.write_whole(exchange, stream, framed, replayed)
        finally:
            if recording is not None and stream.request.handed_over:
                recording.leave()


async def _end_on_disconnect(exchange: InferenceExchange, stream: Stream) -> None:
    await exchange.disconnected()
    exchange.is_disconnected = True
    for one in (stream, exchange.stream):
        if one is not None:
            one.end(ClientDisconnected())
