"""A request that was admitted, and the frame that submits it to an engine."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from inference.gateway.fleet.dispatches import Bounds, Dispatches
from inference.gateway.routing.engine_state import Needs
from inference.interfaces.directory import Grant, ResolvedTarget
from inference.interfaces.limiter import Reservation
from inference.link.accounts import Account
from inference.link.prefixes import Prefix
from inference.link.wire import BATCH, NOT_KEPT, Handover, Resume, Retention, Submit, Wait
from inference.link.workload import ONE_CHOICE, Workload
from inference.pools import Pool
from inference.tracing import Span

Watch = Callable[[Wait], None]
"""Called with what a request waits for, whenever that changes."""


class AdmittedRequest(msgspec.Struct, frozen=True):
    """A request that was admitted, with its grant, target and reservation.

    `grows`: it may generate more than was reserved, if more can be reserved meanwhile. `max_tokens`
    bounds each choice if the body doesn't; then it is also that of the workload. `watch` is called
    with what the request waits for. `parsers` are those that its engine should have
    (`ModelInfo.parsers`). `prefix` names its prompt's beginnings; `trace` is its span, if it is
    traced. `timeout_s` runs from its arrival here to its last token, over all attempts.
    """

    grant: Grant
    target: ResolvedTarget
    reservation: Reservation
    kind: str
    body: bytes
    lane: str
    timeout_s: float
    workload: Workload = ONE_CHOICE
    max_tokens: int | None = None
    grows: bool = False
    watch: Watch | None = None
    parsers: tuple[str, ...] = ()
    prefix: Prefix | None = None
    trace: Span | None = None
    started_at: float = msgspec.field(default_factory=time.time)
    """A unix time in seconds; together with the request's id it identifies the bill, so all
    attempts share it."""
    retention: Retention = NOT_KEPT
    id: str = ""
    """The request's id, if it differs from the reservation's: a request that is sent again has the
    same id in a higher `turn` (`accounts.turn_of`), with a reservation of its own in each turn."""
    turn: int = 1
    route: str = ""
    """The name of the route that chose the model, if one did."""

    @property
    def request_id(self) -> str:
        """The request's id, for engines and the ledger."""
        return self.id or self.reservation.id

    @property
    def overflows(self) -> bool:
        """Whether overflow engines may have it: never with an adapter, as batch work, or without
        its tenant's consent."""
        target = self.target
        is_base = target.adapter is None and target.version_id is None
        return self.grant.overflows and is_base and self.lane != BATCH

    def needs(self, pool: Pool | None = None) -> Needs:
        """What an engine must be able to do for the request, and the revisions of `pool` that may
        run it; without a pool any may."""
        tenant, target, workload = self.grant.tenant, self.target, self.workload
        answer_tokens = (workload.max_tokens or 0) if self.max_tokens is None else 0
        return Needs(
            target.base_model,
            target.adapter,
            operation=self.kind,
            tokens=workload.prompt_tokens + answer_tokens,
            parsers=self.parsers,
            tenant=tenant,
            prompt_tokens=workload.prompt_tokens,
            prefix=self.prefix,
            tiers=None if pool is None else pool.tiers(tenant, target.tried, target.ready),
        )

    def most(self, context: int) -> Bounds:
        """The most it can use on an engine with a context of this many tokens."""
        return Bounds.of(self.body, context, self.workload)

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
        overflow: bool = False,
        prefill: bool = False,
        handover: Handover | None = None,
    ) -> Submit:
        """The frame that submits this attempt to the engine with this credential.

        `most` bounds the usage that the engine reports, which is cumulative over attempts. With
        `ids` it reports which tokens it generates; with `resume` it continues where lower attempts
        stopped. `given_s` is the time from the request's beginning to this submit. `trace` names
        the attempt's span. An answer that is not kept from its beginning (`keeps`) has no
        grace. `overflow` says that the engine is an overflow engine. With `prefill` it only
        computes the prompt; `handover` is what another engine computed of it.
        """
        grant, target = self.grant, self.target
        price = target.price_on(overflow=overflow)
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
            overflow=overflow,
            route=self.route,
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
            workload=self.workload,
            max_tokens=self.max_tokens,
            watched=self.watch is not None,
            attempt=attempt,
            ids=ids,
            resume=resume,
            prefix=self.prefix,
            trace=trace,
            retention=self.retention if keeps else NOT_KEPT,
            prefill=prefill,
            handover=handover,
        )
