"""From a parsed body to a stream of its answer: resolve, reserve, submit, and clean up after it.

Whoever takes requests (the HTTP edge, the playground's socket) takes them to the one `Dispatcher`,
so that limits, queue and ledger are the same for all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inference.errors import ClientDisconnected
from inference.gateway.fleet.hub import Hub
from inference.gateway.fleet.order import Order, Watch
from inference.gateway.fleet.stream import Stream
from inference.gateway.measuring.records import Records
from inference.gateway.prompt_lengths import PromptLengths
from inference.gateway.tick import Tick
from inference.grants import Directory, Grant, Limiter
from inference.link.wire import BATCH
from inference.operations.call import Call
from inference.tracing import Span, Tracer, timed


class Dispatcher:
    """Where requests are admitted; one per gateway process."""

    def __init__(
        self,
        hub: Hub,
        directory: Directory,
        limiter: Limiter,
        *,
        timeout_s: float,
        tracer: Tracer | None = None,
    ) -> None:
        """`timeout_s` bounds one request from its arrival here to its last token; `tracer` makes
        spans of requests."""
        self.records = Records(hub.measures, tracer)
        self._hub, self._directory, self._limiter = hub, directory, limiter
        self._prompts = PromptLengths()
        self.timeout_s = timeout_s

    @asynccontextmanager
    async def generation(
        self,
        id: str,
        grant: Grant,
        call: Call,
        watch: Watch | None = None,
        trace: Span | None = None,
    ) -> AsyncIterator[Stream]:
        """The stream of one request's answer; left before its end, the engine aborts it. `watch` is
        told what it waits for, by engines that know how to. The call's body is taken. `trace` is
        the request's span.

        Raises:
            InferenceError: it is refused; nothing stays reserved.
        """
        body_bytes = len(call.body)
        stream = await self._admit(id, grant, call, watch, trace)
        try:
            yield stream
        finally:
            stream.cancel(ClientDisconnected.code)
            self._learn(stream, body_bytes)

    async def _admit(
        self, id: str, grant: Grant, call: Call, watch: Watch | None, trace: Span | None
    ) -> Stream:
        """Reserve what the call may use and start it."""
        operation = call.operation
        target = await self._directory.resolve(grant, call.model)
        if target.defaults:
            call = operation.parse(with_defaults(call.take_body(), target.defaults))
        usual = self._prompts.estimate(grant.tenant_id, target.base_model, len(call.body))
        estimate = operation.estimate(call, usual, target.max_model_len)
        resolved = Tick()
        with timed(trace, "limits"):
            reservation = await self._limiter.reserve(id, grant, target, estimate.ask)
        try:
            if resolved.over:  # nothing awaited may lie between it and the submit
                target = await self._directory.resolve(grant, call.model)
            bound = operation.bound(call, reservation.output_tokens)
            adapter = target.adapter
            return self._hub.submit(
                Order(
                    grant=grant,
                    target=target,
                    reservation=reservation,
                    kind=operation.name,
                    body=call.take_body(),
                    lane=BATCH if call.flex else grant.lane,
                    timeout_s=self.timeout_s,
                    prompt_tokens=estimate.prompt_tokens,
                    max_tokens=bound,
                    grows=estimate.grows,
                    watch=watch,
                    parsers=call.parsers,
                    tokens=estimate.prompt_tokens + (call.max_tokens or 0),
                    prompts=call.prompts,
                    choices=call.choices,
                    most_tokens=bound if call.max_tokens is None else call.max_tokens,
                    logprobs=call.logprobs,
                    prefix=call.take_prefix(grant.salt, adapter.name if adapter else ""),
                    trace=trace,
                )
            )
        except BaseException:
            self._limiter.release(id)
            raise

    def _learn(self, stream: Stream, body_bytes: int) -> None:
        """A body of this size had so many prompt tokens, if the engine has said."""
        if stream.done is not None and (tokens := stream.done.usage.prompt_tokens):
            tenant_id, base_model = stream.grant.tenant_id, stream.target.base_model
            self._prompts.learn(tenant_id, base_model, body_bytes, tokens)


def with_defaults(body: bytes, defaults: bytes) -> bytes:
    """The body, a JSON object, with `Target.defaults` before its own fields: of a field that is
    there twice the last one counts, so whatever the client says goes before them."""
    head, brace, fields = body.partition(b"{")
    return head + brace + defaults + fields
