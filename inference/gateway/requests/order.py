"""A request that may start, and what an engine is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from inference.gateway.fleet.dispatches import Bounds, Dispatches
from inference.gateway.routing.engine_state import Needs
from inference.gateway.routing.pools import Pool
from inference.grants import Grant, Reservation, Target
from inference.link.wire import Account, Prefix, Resume, Submit, Wait
from inference.tracing import Span

Watch = Callable[[Wait], None]
"""Told what a request waits for, whenever that changes."""


@dataclass(frozen=True, slots=True)
class Order:
    """A request that may start: who asks for what, with what was reserved for it.

    `grows`: it may generate more than that, as far as more can be reserved meanwhile.
    `prompt_tokens` is an estimate; `max_tokens` bounds each choice of a body that doesn't. `watch`
    is told what the request waits for. `parsers` are those that its engine should have
    (`ModelInfo.parsers`), `tokens` prompt and answer together, as far as the client bounds it.
    `choices` texts are generated from `prompts`, which have each text of the body `rereads` times;
    `most_tokens` bounds each of them, None where only the context does, and so many `logprobs` come
    with each of its tokens. `prefix` names its prompt's beginnings; `trace` is its span, if it is
    traced. `timeout_s` is from its arrival here to its last token, over all attempts.
    """

    grant: Grant
    target: Target
    reservation: Reservation
    kind: str
    body: bytes
    lane: str
    timeout_s: float
    prompt_tokens: int = 0
    max_tokens: int | None = None
    grows: bool = False
    watch: Watch | None = None
    parsers: tuple[str, ...] = ()
    tokens: int = 0
    prompts: int = 1
    rereads: int = 1
    choices: int = 1
    most_tokens: int | None = None
    logprobs: int = 0
    prefix: Prefix | None = None
    trace: Span | None = None
    started_at: float = field(default_factory=time.time)
    """A unix time in seconds; with the request's id it names the bill, so attempts share it."""
    grace_s: float = 0.0
    """For so long after this gateway is lost engines keep the answer for another one, which knows
    it by its id, or by its `label`."""
    label: str = ""
    id: str = ""
    """The request's, where it is not its reservation's: one that is tried anew has the same id in a
    higher `turn` (`wire.turn_of`), and a reservation of its own in each."""
    turn: int = 1

    @property
    def request_id(self) -> str:
        """Names it to engines and in the ledger."""
        return self.id or self.reservation.id

    def needs(self, version: int, pool: Pool | None = None) -> Needs:
        """What an engine must be able to do for it, which version of the link it must speak, and
        of which revisions of its pool it may be: of any, where nothing is known of that."""
        tenant, target = self.grant.tenant, self.target
        return Needs(
            target.base_model,
            target.adapter,
            operation=self.kind,
            tokens=self.tokens,
            parsers=self.parsers,
            version=version,
            tenant=tenant,
            prompt_tokens=self.prompt_tokens,
            prefix=self.prefix,
            tiers=None if pool is None else pool.tiers(tenant, target.tried, target.ready),
        )

    def most(self, context: int) -> Bounds:
        """What it can use on an engine with this context."""
        return Bounds.of(
            self.body,
            context,
            prompts=self.prompts,
            rereads=self.rereads,
            choices=self.choices,
            each=self.most_tokens,
        )

    def frame(
        self,
        dispatches: Dispatches,
        credential: int,
        most: Bounds,
        *,
        attempt: int,
        timeout_s: float,
        given_s: float,
        ids: bool,
        resume: Resume | None,
        trace: str = "",
        keeps: bool = True,
    ) -> Submit:
        """What the engine with this credential is told of this attempt.

        `most` bounds what it reports, which is cumulative, so lower attempts too. With `ids` it
        says which tokens it generates; with `resume` it goes on where others stopped. It is given
        to it `given_s` after the request began. `trace` names the attempt's span. What is not kept
        from its beginning on (`keeps`) has no grace.
        """
        grant, target, price = self.grant, self.target, self.target.price
        account = Account(
            tenant_id=grant.tenant_id,
            key_id=grant.key_id,
            started_at=self.started_at,
            base_model=target.base_model,
            adapter_id=target.adapter_id,
            version_id=target.version_id,
            price=(price.prompt, price.cached_prompt, price.output),
            given_s=given_s,
            trace_id="" if self.trace is None else self.trace.trace_id,
        )
        id, adapter = self.request_id, target.adapter
        account = dispatches.signed(
            account, (id, attempt), target.model, credential=credential, most=most
        )
        return Submit(
            id=id,
            kind=self.kind,
            body=self.body,
            model=target.model,
            tenant=grant.tenant,
            salt=grant.salt,
            adapter=None if adapter is None else dispatches.ticketed(adapter, credential),
            weight=grant.weight,
            timeout_s=timeout_s,
            account=account,
            lane=self.lane,
            max_tokens=self.max_tokens,
            prompt_tokens=self.prompt_tokens,
            watched=self.watch is not None,
            attempt=attempt,
            ids=ids,
            choices=self.choices,
            wanted_tokens=self.most_tokens,
            logprobs=self.logprobs,
            resume=resume,
            prefix=self.prefix,
            trace=trace,
            grace_s=self.grace_s if keeps else 0.0,
            label=self.label,
        )
