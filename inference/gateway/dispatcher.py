"""From a parsed body to a stream of its answer: resolve, reserve, submit, and clean up afterwards.

Every edge that takes requests (HTTP, the playground's socket) passes them to the same `Dispatcher`,
so that limits, queue and ledger are the same for all of them.
"""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple

from msgspec.structs import replace

from inference.errors import ClientDisconnected, UnknownModel
from inference.gateway.fleet.orphans import FoundOrphan
from inference.gateway.hub import Hub
from inference.gateway.loop_iteration import LoopIteration, pause
from inference.gateway.prompt_lengths import PromptLengths
from inference.gateway.records.records import Records
from inference.gateway.requests.admitted import AdmittedRequest, Watch
from inference.gateway.requests.stream import AnswerMissing, Stream
from inference.gateway.shadows import Shadows
from inference.interfaces.directory import Directory, Grant, ResolvedTarget, TokenPrice
from inference.interfaces.limiter import Limiter, Reservation
from inference.link.accounts import reservation_id, turn_of
from inference.link.engine_info import ModelInfo
from inference.link.prefixes import Prefix
from inference.link.wire import BATCH, Retention
from inference.operations.estimate import Estimate
from inference.operations.operation import Call
from inference.operations.responses.call import ResponseCall
from inference.splitting import Arrival, choose, shadow_target, stay
from inference.tracing import Span, Tracer, timed

NO_HEADERS: Mapping[bytes, bytes] = {}


class BatchTurn(NamedTuple):
    """Marks a request as a batch line, which uses the batch lane and batch prices. It may be sent
    again, each time in a higher `turn`, of which the ledger bills the last; `started_at` is the
    same in all turns (`Account`)."""

    turn: int
    started_at: float


class Dispatcher:
    """Where requests are admitted; one per gateway process."""

    def __init__(
        self,
        hub: Hub,
        directory: Directory,
        limiter: Limiter,
        *,
        timeout_s: float,
        grace_s: float = 0.0,
        tracer: Tracer | None = None,
    ) -> None:
        """`timeout_s` bounds one request from its arrival here to its last token; `grace_s` is how
        long engines keep answers whose gateway is gone; `tracer` makes spans of requests."""
        self.records = Records(hub.measures, hub.outcomes, tracer)
        self._hub, self._directory, self._limiter = hub, directory, limiter
        self._prompts, self._contents = PromptLengths(), hub.contents
        self.space = hub.contents.space
        """Bounds the memory for responses that are to be stored."""
        self.structures = hub.structures
        """Checks answers."""
        self.shadows = Shadows(self._copy, directory, self.records)
        self.timeout_s, self._grace_s = timeout_s, grace_s

    @asynccontextmanager
    async def generation(
        self,
        id: str,
        grant: Grant,
        call: Call,
        watch: Watch | None = None,
        *,
        trace: Span | None = None,
        adoptable: bool = False,
        label: str = "",
        line: BatchTurn | None = None,
        headers: Mapping[bytes, bytes] = NO_HEADERS,
        shadow: int | None = None,
    ) -> AsyncIterator[Stream]:
        """The stream of one request's answer; leaving the block before the end aborts the request
        on its engine. Takes the call's body. `watch` is called with what the request waits for,
        where the engine reports that. `trace` is the request's span. With `adoptable` the answer
        outlives this gateway for the grace period, and other gateways find it by its id or `label`.
        `headers` are the client's, in lower case: one may choose the version of a split. `shadow`
        is the id of the one for whose candidate the request is a copy.

        Raises:
            InferenceError: the request is refused; nothing stays reserved.
        """
        body_bytes = len(call.body)
        capture = self._contents.begin(id, grant, call.operation.name, call.body)
        retention = Retention(self._grace_s if adoptable else 0.0, label)
        try:
            arrival = arrival_of(id, call, headers)
            stream = await self._admit(arrival, grant, call, watch, retention, trace, line, shadow)
        except BaseException:
            if capture is not None:
                capture.drop()
            raise
        stream.attach_capture(capture)
        try:
            yield stream
        finally:
            stream.cancel(ClientDisconnected.code)
            self._learn(stream, body_bytes)

    def _copy(
        self, id: str, grant: Grant, call: Call, shadow: int
    ) -> AbstractAsyncContextManager[Stream]:
        """The stream of a copy of a request (`Shadows`)."""
        line = BatchTurn(1, time.time())
        return self.generation(id, grant, call, line=line, shadow=shadow)

    def engines(self) -> list[ModelInfo]:
        """What each connected engine serves."""
        return [engine.info for engine in self._hub.engines()]

    def running(self, key_id: int) -> Mapping[str, int]:
        """The orphaned requests of this API key, by id, with their turns: engines have them, no
        gateway does. Empty once this gateway is closing."""
        return {} if self._hub.closing else self._hub.orphans.turns(key_id)

    async def found(self, key_id: int, label: str, within_s: float) -> FoundOrphan | None:
        """The orphaned request of this API key with this label, as soon as an engine reports it;
        None if none does within `within_s`."""
        return await self._hub.orphans.labelled(key_id, label, within_s)

    @asynccontextmanager
    async def adoption(
        self,
        found: FoundOrphan | str,
        grant: Grant,
        call: Call,
        watch: Watch | None = None,
        *,
        turn: int | None = None,
        trace: Span | None = None,
    ) -> AsyncIterator[Stream]:
        """The stream of an orphaned answer (an engine has it, no gateway does), from its beginning.
        `found` may also be the request's id, which is then looked up. What the request uses was
        reserved when it began. Without a body in the call the answer can't move to another engine.
        `turn` is that of its claim, if it has one.

        Raises:
            AnswerMissing: the answer no longer exists; the stream's first `read` may raise this
                too.
            InferenceError: the key may not have it.
        """
        if isinstance(found, str):
            known = self._hub.orphans.find(grant.key_id, found)
            if known is None:
                raise AnswerMissing
            found = known
        order = await self._adopted(found, grant, call, watch, trace)
        if not self._hub.orphans.take(found):  # only now: what failed before can be tried again
            raise AnswerMissing
        stream = self._hub.adopt(order, found, turn or turn_of(found.orphan.attempt) + 1)
        operation = call.operation.name
        stream.attach_capture(self._contents.begin(stream.id, grant, operation, call.body))
        stream.attach_structure(self.structures.begin(grant.tenant_id, call))
        try:
            yield stream
        finally:
            stream.cancel(ClientDisconnected.code)

    async def _adopted(
        self, found: FoundOrphan, grant: Grant, call: Call, watch: Watch | None, trace: Span | None
    ) -> AdmittedRequest:
        orphan, account = found.orphan, found.orphan.account
        if (account.tenant_id, account.key_id) != (grant.tenant_id, grant.key_id):
            raise AnswerMissing
        found_target = await self._directory.resolve(grant, orphan.model)
        target = stay(found_target, account.version_id, arrival_of(orphan.id, call))
        as_it_was = (target.base_model, target.adapter_id, target.version_id) == (
            account.base_model, account.adapter_id, account.version_id,
        )  # fmt: skip
        target = replace(target, base_model=account.base_model, price=TokenPrice(*account.price))
        if account.overflow:
            target = replace(target, overflow_price=None)
        estimate = call.operation.estimate(call, 0, target.max_model_len)
        reservation = await self._limiter.take_over(orphan.id, grant, target)
        order = self._order(
            call,
            grant,
            target,
            reservation,
            estimate,
            body=call.body if as_it_was else b"",
            retention=Retention(self._grace_s, orphan.label),
            watch=watch,
            trace=trace,
        )
        return replace(order, started_at=account.started_at, route=account.route)

    def _order(
        self,
        call: Call,
        grant: Grant,
        target: ResolvedTarget,
        reservation: Reservation,
        estimate: Estimate,
        *,
        body: bytes,
        retention: Retention,
        watch: Watch | None,
        trace: Span | None,
        id: str = "",
        prefix: Prefix | None = None,
    ) -> AdmittedRequest:
        """The call, admitted with this reservation."""
        bound, workload = call.operation.bound(call, reservation.output_tokens), estimate.workload
        if bound is not None:
            workload = replace(workload, max_tokens=bound)
        if not call.operation.uses_adapter:
            target = replace(target, adapter=None)
        return AdmittedRequest(
            grant=grant,
            target=target,
            reservation=reservation,
            kind=call.operation.name,
            body=body,
            lane=BATCH if call.flex else grant.lane,
            timeout_s=self.timeout_s,
            workload=workload,
            max_tokens=bound,
            grows=estimate.grows,
            parsers=call.parsers,
            watch=watch,
            trace=trace,
            retention=retention,
            id=id,
            prefix=prefix,
            route=call.route,
        )

    async def _admit(
        self,
        arrival: Arrival,
        grant: Grant,
        call: Call,
        watch: Watch | None,
        retention: Retention,
        trace: Span | None,
        line: BatchTurn | None,
        shadow: int | None,
    ) -> Stream:
        """Reserve what the call may use and start it."""
        operation, id = call.operation, arrival.request_id
        target = await self._target(grant, call, line, arrival, shadow)
        if target.defaults:
            await pause(len(call.body))
            chosen = call.model, call.route
            call = operation.parse(with_defaults(call.take_body(), target.defaults))
            call.model, call.route = chosen
        usual = self._prompts.estimate(grant.tenant_id, target.base_model, len(call.body))
        estimate = operation.estimate(call, usual, target.max_model_len)
        resolved = LoopIteration()
        reserved = id if line is None else reservation_id(id, line.turn)
        with timed(trace, "limits"):
            reservation = await self._limiter.reserve(reserved, grant, target, estimate.ask)
        try:
            if resolved.is_over:  # there must be no await between this and the submit
                target = await self._target(grant, call, line, arrival, shadow)
            adapter, arm = target.adapter, target.arm
            copied = copy.copy(call) if arm is not None and arm.copies_to is not None else None
            order = self._order(
                call,
                grant,
                target,
                reservation,
                estimate,
                id=id,
                body=call.take_body(),
                prefix=call.take_prefix(grant.salt, adapter.name if adapter else ""),
                retention=retention,
                watch=watch,
                trace=trace,
            )
            if line is not None:
                order = replace(order, lane=BATCH, turn=line.turn, started_at=line.started_at)
            stream = self._hub.submit(order)
            stream.attach_structure(self.structures.begin(grant.tenant_id, call))
            if copied is not None and arm is not None:
                self.shadows.follow(stream, copied, arm)
            return stream
        except BaseException:
            self._limiter.release(reserved)
            raise

    async def _target(
        self,
        grant: Grant,
        call: Call,
        line: BatchTurn | None,
        arrival: Arrival,
        shadow: int | None,
    ) -> ResolvedTarget:
        """What the call's model resolves to, chosen by its route and its split if it has them, with
        the price that applies: batch lines have their own."""
        resolved = routed(await self._directory.resolve(grant, call.model), call)
        if shadow is None:
            target = choose(resolved, arrival)
        elif (candidate := shadow_target(resolved, shadow)) is not None:
            target = candidate
        else:
            raise UnknownModel("The shadow has ended.", param="model")
        if line is None:
            return target
        return replace(target, price=target.batch_price or target.price, overflow_price=None)

    def _learn(self, stream: Stream, body_bytes: int) -> None:
        """Learn how many prompt tokens a body of this size had, if the engine reported it."""
        if stream.done is not None and (tokens := stream.done.usage.prompt_tokens):
            request = stream.request
            tenant_id, base_model = request.grant.tenant_id, request.target.base_model
            self._prompts.learn(tenant_id, base_model, body_bytes, tokens)


def routed(target: ResolvedTarget, call: Call) -> ResolvedTarget:
    """The option that answers the call, if the target is a route; then the call is one of that
    option from now on, so that its answer names it."""
    if target.route is None:
        return target
    asked = call.beginnings
    option = target.route.choose(asked.question, asked.question_chars)
    call.model, call.route = option.model, target.route.name
    return option


def arrival_of(id: str, call: Call, headers: Mapping[bytes, bytes] = NO_HEADERS) -> Arrival:
    """What the request of this id says of whom it is from."""
    conversation = call.conversation if isinstance(call, ResponseCall) else ""
    opening = conversation or call.beginnings.opening
    return Arrival(id, call.user, call.safety_identifier, opening, headers)


def with_defaults(body: bytes, defaults: bytes) -> bytes:
    """The body, a JSON object, with `ResolvedTarget.defaults` inserted before its own fields. The
    last of duplicate fields counts, so the client's values take precedence."""
    head, brace, fields = body.partition(b"{")
    return head + brace + defaults + fields
