"""From a parsed body to a stream of its answer: resolve, reserve, submit, and clean up after it.

Whoever takes requests (the HTTP edge, the playground's socket) takes them to the one `Dispatcher`,
so that limits, queue and ledger are the same for all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from inference.errors import ClientDisconnected
from inference.gateway.admission import PromptLengths, ask_of, bound_of, grows, prompt_tokens_of
from inference.gateway.hub import Hub, Order
from inference.gateway.stream import Stream, Watch
from inference.grants import Directory, Grant, Limiter
from inference.operations.openai import Call


class Dispatcher:
    """Where requests are admitted; one per gateway process."""

    def __init__(
        self, hub: Hub, directory: Directory, limiter: Limiter, *, timeout_s: float
    ) -> None:
        """`timeout_s` bounds one request from its arrival at the engine to its last token."""
        self._hub, self._directory, self._limiter = hub, directory, limiter
        self._prompts = PromptLengths()
        self.timeout_s = timeout_s

    @asynccontextmanager
    async def generation(
        self, id: str, grant: Grant, call: Call, body: bytes, watch: Watch | None = None
    ) -> AsyncIterator[Stream]:
        """The stream of one request's answer; left before its end, the engine aborts it. `watch` is
        told what it waits for, by engines that know how to.

        Raises:
            InferenceError: it is refused; nothing stays reserved.
        """
        stream = await self.admit(id, grant, call, body, watch)
        try:
            yield stream
        finally:
            self.finish(stream, body)

    async def admit(
        self, id: str, grant: Grant, call: Call, body: bytes, watch: Watch | None = None
    ) -> Stream:
        """Reserve what the call may use and start it; `finish` must follow.

        Raises:
            InferenceError: as `generation`.
        """
        target = await self._directory.resolve(grant, call.model)
        estimate = self._prompts.estimate(grant.tenant_id, target.base_model, len(body))
        prompt_tokens = prompt_tokens_of(call, estimate, target.max_model_len)
        ask = ask_of(call, prompt_tokens, target.max_model_len)
        reservation = await self._limiter.reserve(id, grant, target, ask)
        try:
            # Once more, because nothing awaited may lie between it and the submit.
            target = await self._directory.resolve(grant, call.model)
            return self._hub.submit(
                Order(
                    grant=grant,
                    target=target,
                    reservation=reservation,
                    kind=call.kind,
                    body=body,
                    lane="batch" if call.flex else grant.lane,
                    timeout_s=self.timeout_s,
                    prompt_tokens=prompt_tokens,
                    max_tokens=bound_of(call, reservation.output_tokens),
                    grows=grows(call),
                    watch=watch,
                    parsers=call.parsers,
                    tokens=prompt_tokens + (call.max_tokens or 0),
                )
            )
        except BaseException:
            self._limiter.release(id)
            raise

    def finish(self, stream: Stream, body: bytes) -> None:
        """Nobody reads the stream any more."""
        stream.cancel(ClientDisconnected.code)
        if stream.done is not None and (tokens := stream.done.usage.prompt_tokens):
            tenant_id, base_model = stream.grant.tenant_id, stream.target.base_model
            self._prompts.learn(tenant_id, base_model, len(body), tokens)
