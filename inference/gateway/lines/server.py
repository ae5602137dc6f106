"""`/ws/lines`: workers send batch lines, and get their answers.

A line takes the path of any request: grant, limits, engine, ledger (`dispatcher`). But it waits
here until an engine can use it (`line_queue`), and then in the batch lane. Losing a socket ends its
lines; the worker asks for them again, at any gateway.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import structlog

from inference.errors import (
    ApiKeyRevoked,
    ClientDisconnected,
    GenerationTimeout,
    InferenceError,
    InsufficientQuota,
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    RateLimitExceeded,
)
from inference.gateway.dispatcher import BatchTurn as LineOf
from inference.gateway.dispatcher import Dispatcher, routed
from inference.gateway.exchanges import answer
from inference.gateway.exchanges.exchange import Receive, Scope, Send
from inference.gateway.lines import frames
from inference.gateway.lines.background import Background, BackgroundWork, is_background
from inference.gateway.lines.frames import (
    AskLine,
    LineAnswer,
    LineNews,
    OpenBatch,
    UnknownMessage,
    WithdrawBatch,
)
from inference.gateway.lines.line_queue import LineQueue
from inference.gateway.lines.seals import holds, line_id
from inference.gateway.records.log_line import Asked
from inference.gateway.requests.stream import Stream
from inference.gateway.routing.engine_state import EngineState
from inference.gateway.sockets import UNAUTHORISED, AsgiTransport, bearer, trust
from inference.interfaces.directory import Directory, Grant
from inference.link.accounts import Usage
from inference.link.wire import MAX_FRAME_BYTES, Wait
from inference.operations.bodies.shape import BodyShape
from inference.operations.error_shapes import OPENAI
from inference.operations.operation import Call, Framing
from inference.operations.registry import OPERATIONS

log = structlog.get_logger(__name__)

SOON_S = 1.0
QUOTA_S = 60.0
"""When to ask again if the error doesn't say. QUOTA_S is for budgets, which may be raised at any
time."""
NEWS_BYTES = 1 << 20
"""Most bytes of answers in one message, unless a single one is longer."""
COUNTED_S = 1.0
"""How long a count of engines is reused."""
PREFILL = "prefill"
MAX_BATCHES = 4096
"""Batches open on one socket."""


class LineFleet(Protocol):
    """The part of the hub that is used here."""

    closed: asyncio.Event

    def engines(self) -> list[EngineState]: ...


@dataclass(slots=True, eq=False)
class WaitingLine:
    """A line that was asked for. `id` is its request id; `work` is set if it is a background
    response."""

    link: WorkerLink
    batch: OpenBatch
    ask: AskLine
    id: str
    call: Call
    base_model: str
    began: float
    work: BackgroundWork | None = None

    def close(self) -> None:
        """Free what the line holds, once it neither waits nor runs."""
        if self.work is not None:
            self.work.close()


class Lines:
    """All lines of a gateway process, of all workers; the ASGI application."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        keys: Directory,
        fleet: LineFleet,
        background: Background,
        *,
        token: str,
        secret: str,
        max_body_bytes: int,
    ) -> None:
        """Workers authenticate with `token`; batches are sealed with `secret`."""
        self.keys, self.secret, self.max_body_bytes = keys, secret, max_body_bytes
        self.live: set[str] = set()
        """Ids of lines that wait, or are not settled yet."""
        self.background = background
        self._dispatcher, self._fleet, self._token = dispatcher, fleet, token
        self._queues: dict[str, LineQueue[WaitingLine]] = {}
        self._engines, self._counted_at = Counter[str](), -COUNTED_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # websocket.connect
        if not hmac.compare_digest(bearer(scope).encode(), self._token.encode()):
            reason = "This URL requires the LORIKEET_WORKER_TOKEN."
            await send({"type": "websocket.close", "code": UNAUTHORISED, "reason": reason})
            return
        trust(scope, MAX_FRAME_BYTES, paced=False)
        await send({"type": "websocket.accept"})
        await WorkerLink(self, AsgiTransport(receive, send)).run(self._fleet.closed)

    def add(self, line: WaitingLine, tenant: str) -> None:
        """Let a line, whose id is in `live`, wait for its turn."""
        self._queues.setdefault(line.base_model, LineQueue()).add(tenant, line)
        self._go_on(line.base_model)

    def withdraw(self, of: Callable[[WaitingLine], bool]) -> list[WaitingLine]:
        """Take the waiting lines for which `of` holds out; returns them."""
        withdrawn = [line for queue in self._queues.values() for line in queue.withdraw(of)]
        self.live.difference_update(line.id for line in withdrawn)
        for line in withdrawn:
            line.close()
        return withdrawn

    def _go_on(self, base_model: str) -> None:
        if (queue := self._queues.get(base_model)) is None:
            return
        while (line := queue.next(self._engines_of(base_model))) is not None:
            begun, running = Once(queue.begun), RunningLine(line)
            task = asyncio.create_task(self._run(running, begun), name="line")
            line.link.tasks[task] = line
            # Not in a `finally` of the task: one cancelled before its first step never runs it.
            task.add_done_callback(partial(self._ended, running, begun, queue))
        if queue.idle:
            del self._queues[base_model]

    def _engines_of(self, base_model: str) -> int:
        if time.monotonic() - self._counted_at >= COUNTED_S:
            engines = self._fleet.engines()
            self._engines = Counter(one.info.name for one in engines if not one.draining)
            self._counted_at = time.monotonic()
        return self._engines[base_model]

    def _ended(
        self,
        running: RunningLine,
        begun: Once,
        queue: LineQueue[WaitingLine],
        task: asyncio.Task[None],
    ) -> None:
        line = running.line
        del line.link.tasks[task]
        begun()
        queue.ended()
        line.close()
        if running.stream is None:
            self.live.discard(line.id)
        self._go_on(line.base_model)

    async def _run(self, running: RunningLine, begun: Once) -> None:
        """Answer a line, or tell the worker to ask for it again."""
        line = running.line
        try:
            answer = await self._generate(running, begun)
        except InferenceError as error:
            if isinstance(error, ApiKeyRevoked) and await self._goes_on(line):
                error = Overloaded("The API key was rotated.", retry_after_s=SOON_S)
            answer = running.failed(error)
            await _keep(line.work, error)
        except asyncio.CancelledError:
            left = running.failed(ClientDisconnected())
            self._dispatcher.records.ended(running.asked(left.status), running.error)
            raise
        except Exception:
            log.exception("line_crashed", request_id=line.id)
            answer = running.failed(InferenceError())
        self._dispatcher.records.ended(running.asked(answer.status), running.error)
        line.link.tell(answer)

    async def _generate(self, running: RunningLine, begun: Once) -> LineAnswer:
        line = running.line
        batch, ask, call = line.batch, line.ask, line.call
        running.grant = grant = await self.keys.grant_of(batch.key_id)

        def waits(wait: Wait | None) -> None:
            """A line counts as begun once it waits only for its prefill (None: it has output), as
            an answer that doesn't stream sends nothing before its end."""
            if (wait is None or wait.phase == PREFILL) and begun():
                line.link.tell_begun(line)
                self._go_on(line.base_model)

        generation = self._dispatcher.generation(
            line.id, grant, call, waits, line=LineOf(ask.turn, batch.created_at)
        )
        async with generation as stream:
            running.stream = stream
            stream.on_settled(lambda: self.live.discard(line.id))
            news = await stream.read()
            waits(None)

            def framed() -> Framing:
                revision = stream.request.revision
                return call.operation.framing(call, line.id, int(time.time()), revision)

            body = await answer.whole(stream, framed, news)
        if line.work is not None:
            await line.work.answered(body)
        return LineAnswer(batch.batch, ask.number, 200, body, sent=True, usage=running.usage)

    async def _goes_on(self, line: WaitingLine) -> bool:
        """Whether the line's key, which was just revoked, was rotated into another one."""
        try:
            await self.keys.grant_of(line.batch.key_id)
        except InferenceError:
            return False
        return True


class Once:
    """Calls a function the first time it is called, and never again; returns whether it did."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def __call__(self) -> bool:
        if (function := self._function) is None:
            return False
        self._function = None
        function()
        return True


@dataclass(slots=True)
class RunningLine:
    """A line on an engine, or on its way there."""

    line: WaitingLine
    grant: Grant | None = None
    stream: Stream | None = None
    error: InferenceError | None = None

    @property
    def sent(self) -> bool:
        """Whether the line was given to an engine."""
        return self.stream is not None and bool(self.stream.request.engine)

    @property
    def usage(self) -> Usage:
        """The usage that is billed, as far as it is known."""
        done = None if self.stream is None else self.stream.done
        return Usage() if done is None else done.usage

    def failed(self, error: InferenceError) -> LineAnswer:
        """Note that the line ended with this error; returns the answer for the worker."""
        self.error = error
        return answer_of(self.line.ask, error, sent=self.sent, usage=self.usage)

    def asked(self, status: int) -> Asked:
        """The line's record for the log, metrics and outcomes."""
        line = self.line
        return Asked(
            id=line.id,
            surface="batch" if line.work is None else "background",
            began=line.began,
            status=status,
            operation=line.call.operation,
            grant=self.grant,
            call=line.call,
            stream=self.stream,
        )


def answer_of(
    ask: AskLine, error: InferenceError, *, sent: bool = False, usage: Usage | None = None
) -> LineAnswer:
    """The answer for a line that failed."""
    return LineAnswer(
        ask.batch,
        ask.number,
        error.http_status,
        OPENAI.body(error),
        again_s=_again_s(error),
        sent=sent,
        code=error.code,
        usage=usage or Usage(),
    )


async def _keep(work: BackgroundWork | None, error: InferenceError) -> None:
    """Store the error of a background response, unless it will be asked for again."""
    if work is not None and _again_s(error) is None:
        await work.failed(error)


def _again_s(error: InferenceError) -> float | None:
    """Seconds until the line should be asked for again; None if that can't help. A rate limit error
    has no time if the limit can never fit the request."""
    if isinstance(error, InsufficientQuota):
        return QUOTA_S
    if isinstance(error, RateLimitExceeded):
        return error.retry_after_s
    if error.retryable or isinstance(error, Overloaded | GenerationTimeout):
        return error.retry_after_s or SOON_S
    return SOON_S if type(error) is InferenceError else None


class WorkerLink:
    """One worker's socket."""

    def __init__(self, lines: Lines, transport: AsgiTransport) -> None:
        self.tasks: dict[asyncio.Task[None], WaitingLine] = {}
        """Lines that were given to engines."""
        self._lines, self._transport = lines, transport
        self._batches: dict[str, OpenBatch] = {}
        self._begun: list[tuple[str, int]] = []
        self._answers: deque[LineAnswer] = deque()
        self._news = asyncio.Event()
        self._leaving = False

    async def run(self, closed: asyncio.Event) -> None:
        """Serve the socket until it closes or, once `closed` is set, until the lines that engines
        have are answered."""
        parts = [
            asyncio.create_task(part) for part in (self._read(), self._leave(closed), self._write())
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        except OSError:
            pass
        except (InferenceError, msgspec.DecodeError) as error:
            log.error("worker_refused", reason=str(error))
            await self._transport.close(str(error))
        finally:
            self._lines.withdraw(lambda line: line.link is self)
            for task in (*parts, *self.tasks):
                task.cancel()

    def tell(self, answer: LineAnswer) -> None:
        """Send the worker this answer; that of a background response without its body."""
        if is_background(answer.batch):
            answer = msgspec.structs.replace(answer, body=b"")
        self._answers.append(answer)
        self._news.set()

    def tell_begun(self, line: WaitingLine) -> None:
        """Tell the worker that an engine has begun this line."""
        self._begun.append((line.batch.batch, line.ask.number))
        self._news.set()

    async def _read(self) -> None:
        while (message := await self._transport.receive()) is not None:
            match frames.to_gateway.decode(message):
                case OpenBatch() as batch:
                    self._open(batch)
                case AskLine() as ask:
                    await self._ask(ask)
                case WithdrawBatch(batch=batch):
                    self._withdraw(batch)
                case UnknownMessage(tag=tag):
                    log.info("unknown_frame", frame=tag)

    async def _leave(self, closed: asyncio.Event) -> None:
        await closed.wait()
        self._give_back(self._lines.withdraw(lambda line: line.link is self))
        while self.tasks:
            await asyncio.wait(self.tasks)
        self._leaving = True
        self._news.set()
        await asyncio.Future()  # the writer ends last

    async def _write(self) -> None:
        while not self._leaving or self._answers:
            await self._news.wait()
            begun, self._begun = self._begun, []
            answers: list[LineAnswer] = []
            size = 0
            while self._answers and (not answers or size + len(self._answers[0].body) < NEWS_BYTES):
                answers.append(self._answers.popleft())
                size += len(answers[-1].body)
            if not self._answers:
                self._news.clear()
            await self._transport.send(frames.encode(LineNews(begun, answers)))
        await self._transport.close("This gateway is shutting down.")

    def _open(self, batch: OpenBatch) -> None:
        if not holds(self._lines.secret, batch, batch.seal):
            raise InvalidRequest(f"Invalid seal of the batch {batch.batch[:64]}.")
        if len(self._batches) >= MAX_BATCHES:
            raise InvalidRequest(f"At most {MAX_BATCHES} batches can be open on one socket.")
        self._batches[batch.batch] = batch

    async def _ask(self, ask: AskLine) -> None:
        """Let a line wait for its turn, or answer at once why it can't."""
        if (batch := self._batches.get(ask.batch)) is None:
            raise InvalidRequest("The line's batch is not open on this socket.")
        if is_background(batch.batch) and ask.number != 1:
            raise InvalidRequest("A background response has exactly one line.")
        id = line_id(batch.batch, ask.number)
        if id in self._lines.live:  # the turn before is not settled yet
            return self.tell(LineAnswer(ask.batch, ask.number, 503, again_s=SOON_S))
        self._lines.live.add(id)  # before any await: another worker may ask for the same line
        waits = False
        try:
            waits = await self._begin_waiting(batch, ask, id)
        finally:
            if not waits:
                self._lines.live.discard(id)

    async def _begin_waiting(self, batch: OpenBatch, ask: AskLine, id: str) -> bool:
        """False if the line was answered at once."""
        work: BackgroundWork | None = None
        try:
            grant = await self._lines.keys.grant_of(batch.key_id)
            if is_background(batch.batch):
                work = await self._lines.background.begin(grant, id, ask.turn)
            call = self._call(batch, ask) if work is None else work.call()
            target = routed(await self._lines.keys.resolve(grant, call.model), call)
        except InferenceError as error:
            await _keep(work, error)
            if work is not None:
                work.close()
            self.tell(answer_of(ask, error))
            return False
        began = time.monotonic()
        waiting = WaitingLine(self, batch, ask, id, call, target.base_model, began, work)
        self._lines.add(waiting, grant.tenant)
        return True

    def _call(self, batch: OpenBatch, ask: AskLine) -> Call:
        if len(ask.body) > self._lines.max_body_bytes:
            raise PayloadTooLarge(
                f"The request exceeds this server's limit of {self._lines.max_body_bytes} bytes."
            )
        operation = OPERATIONS.named(batch.operation)
        BodyShape(operation.max_numbers).feed(ask.body)
        call = operation.parse(ask.body)
        call.check_as_line()
        return call

    def _withdraw(self, batch: str) -> None:
        self._give_back(
            self._lines.withdraw(lambda line: line.link is self and line.ask.batch == batch)
        )
        self._batches.pop(batch, None)
        for task, line in [*self.tasks.items()]:
            if line.work is not None and line.ask.batch == batch:  # its answer is not needed
                task.cancel()

    def _give_back(self, lines: Iterable[WaitingLine]) -> None:
        for line in lines:
            self.tell(LineAnswer(line.ask.batch, line.ask.number, 503, again_s=0.0))
