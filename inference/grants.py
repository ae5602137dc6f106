"""What the token path asks of the platform: who calls, what a name means, may it, note the usage.

`tenants` implements the protocols; `gateway.asgi` wires them in. A Grant is made by the server
from the key alone; nothing that a client sends changes one.

Money is counted in whole numbers. A price is in micro-units (millionths) of the currency per
million tokens; tokens times price is therefore in pico-units (1e-12), which is what a cost is in:
exact, never rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import msgspec

from inference.errors import InferenceError
from inference.link.wire import AdapterRef, EngineStats, LedgerEntry, Usage

MICRO = 10**6
PICO = 10**12
"""Parts of one unit of the currency, such as a dollar."""


@dataclass(frozen=True, slots=True)
class Price:
    """What tokens cost, in micro-units of the currency per million tokens."""

    prompt: int = 0
    """Of prompt tokens that the prefix cache did not hold."""
    cached_prompt: int = 0
    output: int = 0

    def cost(self, usage: Usage) -> int:
        """In pico-units, exact."""
        uncached = usage.prompt_tokens - usage.cached_tokens
        return (
            uncached * self.prompt
            + usage.cached_tokens * self.cached_prompt
            + usage.completion_tokens * self.output
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What one scope (a tenant, a key, an adapter) allows. Compare by value.

    `scope_id` names the scope wherever its counters are kept: `t12`, `k7`, `a3`, with the id of the
    row, of a rotated key that of the first one; `shown` names it in messages (``tenant `acme` ``).
    `values` has the limits that are set, by the name of their kind (`tenants.limits.kinds`).
    """

    scope_id: str
    shown: str
    values: Mapping[str, int] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hashed with every request; a scope has hardly ever two sets of limits at a time."""
        return hash(self.scope_id)


@dataclass(frozen=True, slots=True)
class Grant:
    """What one API key may do, as of the last check. Compare by value.

    `models` is the allow-list of names without a version (None: all of the tenant's); `salt` the
    tenant's prefix-cache salt; `expires_at` a unix time in seconds; `limits` those of the tenant
    and of the key, where they have any; `lane` is `interactive` or `batch`.
    """

    key_id: int
    tenant_id: int
    tenant: str
    scopes: frozenset[str]
    models: frozenset[str] | None
    weight: float
    salt: str
    expires_at: float | None = None
    limits: tuple[Limits, ...] = ()
    lane: str = "interactive"
    key: str = ""
    """The key's prefix, by which people know it; for logs."""
    keeps_content: bool = False
    """Whether its tenant keeps prompts and answers, and the key does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a model name means for a grant: a base model, or one adapter version on it."""

    model: str
    """The name as the client wrote it, shown in the answer."""
    base_model: str
    adapter: AdapterRef | None = None
    version_id: int | None = None
    adapter_id: int | None = None
    limits: tuple[Limits, ...] = ()
    """The adapter's, where it has any."""
    price: Price = Price()
    """As of the moment of the question: what is reserved, and billed."""
    max_model_len: int = 0
    """Longest prompt and answer together, in tokens; 0 where it is not known."""
    created: int = 0
    """A unix time: when the base model, or the adapter, came here."""
    tried: frozenset[str] | None = None
    """The revisions (`ModelInfo.pool_digest`) on which the adapter passed; None: it has none, or
    nobody says."""
    ready: frozenset[str] | None = None
    """Those on which all live adapters of the tenant passed; None: it has none, or nobody says."""
    defaults: bytes = b""
    """Fields for bodies that lack them: JSON without the braces, with a comma at its end."""
    batch_price: Price | None = None
    """Of lines of batches; None: they have no other price."""


OUR_MODELS = "lorikeet"
"""Whom base models are said to belong to; adapters belong to their tenant."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of `GET /v1/models`; `created` is a unix time in seconds."""

    id: str
    created: int
    owned_by: str
    root: str
    """The base model that it runs on."""
    max_model_len: int = 0
    """Longest prompt and answer together, in tokens; 0 where it is not known."""
    price: Price = Price()
    """As of now."""

    @classmethod
    def of(cls, grant: Grant, target: Target) -> ModelCard:
        """What is shown to whom it is resolved for."""
        return cls(
            target.model,
            target.created,
            OUR_MODELS if target.adapter is None else grant.tenant,
            target.base_model,
            target.max_model_len,
            target.price,
        )


class Directory(Protocol):
    """Keys and model names, answered from memory once seen."""

    async def authenticate(self, secret: str) -> Grant:
        """The grant of this key.

        Raises:
            InvalidApiKey: unknown, revoked, expired, or its tenant is suspended.
            Unavailable: it is not in memory and the database cannot be reached.
        """
        ...

    async def resolve(self, grant: Grant, name: str) -> Target:
        """What the model name means.

        Raises:
            UnknownModel: there is no such model, or this key may not use it (the two look alike).
            Unavailable: as `authenticate`.
        """
        ...

    async def models(self, grant: Grant) -> list[ModelCard]:
        """Every model this key may use, by name."""
        ...

    def on_revoked(self, callback: Callable[[int, InferenceError], None]) -> None:
        """Call `callback(key_id, error)` when a key in use can no longer infer."""
        ...


class Ask(msgspec.Struct, frozen=True):
    """What a request is going to use.

    `output_tokens` over all choices is what it wants; with less than `least_output_tokens` it is
    refused, in between it is granted what there is. `quantities` is what it takes besides tokens
    and itself, by the name under which a kind of limit counts it, such as `images`.
    """

    prompt_tokens: int
    output_tokens: int
    least_output_tokens: int
    quantities: dict[str, int] = {}


class Room(msgspec.Struct, frozen=True):
    """How much of a limit is left, for the `x-ratelimit` headers; `reset_s` in seconds from now."""

    limit: int
    remaining: int
    reset_s: float


class Reservation(msgspec.Struct):
    """What was reserved for the request `id`; `extend` makes it more.

    `output_tokens` is what may be generated, None where nothing limits tokens. `rooms` is by the
    end of the header's name (`requests`, `tokens`), each of the scope that has the least left.
    """

    id: str
    output_tokens: int | None = None
    rooms: dict[str, Room] = {}


class Limiter(Protocol):
    """Limits over all scopes: reserved before a request is dispatched, settled after it ended.

    Whoever settles or releases a reservation first decides; later calls for the same id change
    nothing. A reservation of a process that died is returned when its lease expires.
    """

    async def reserve(self, id: str, grant: Grant, target: Target, ask: Ask) -> Reservation:
        """Reserve in every scope at once, or in none.

        Raises:
            RateLimitExceeded, InsufficientQuota: a limit is reached; nothing was reserved.
            Unavailable: the counters cannot be reached and the settings say to refuse.
        """
        ...

    async def extend(self, reservation: Reservation, output_tokens: int) -> None:
        """Reserve that many more output tokens, or as many as there are (at least one).

        Mutates the reservation.

        Raises:
            RateLimitExceeded, InsufficientQuota: there are none; nothing changed.
        """
        ...

    async def take_over(self, id: str, grant: Grant, target: Target) -> Reservation:
        """Go on with what another gateway reserved for this request. Where that was given back
        already, nothing is reserved: the answer is not counted twice. Never raises."""
        ...

    def hand_over(self, id: str) -> None:
        """Another gateway goes on with the request, or may do so: nothing is settled here."""
        ...

    def settle(self, id: str, usage: Usage | None) -> None:
        """The request ended: replace what was reserved by what was used, free its concurrency slot.

        None: nobody knows what it used, so the estimate stays. Returns at once; never raises.
        """
        ...

    def release(self, id: str) -> None:
        """The request was never started: give everything back. Returns at once; never raises."""
        ...

    async def look(self, limits: tuple[Limits, ...]) -> Reservation:
        """The rooms of these as they stand; reserves nothing."""
        ...


@dataclass(frozen=True, slots=True)
class EngineCredential:
    """Who an engine is. Compare by value.

    `id` is its row, 0 where engines share a token; `pools` the base models that it may serve, None
    for all; `prefix` is that of its secret, so it is another one once it was rotated.
    """

    id: int
    name: str
    pools: frozenset[str] | None = None
    prefix: str = ""

    def may_serve(self, base_model: str) -> bool:
        return self.pools is None or base_model in self.pools


class Engines(Protocol):
    """The credentials of engines, answered from memory."""

    def identify(self, secret: str) -> EngineCredential:
        """Whose secret this is; compared in constant time.

        Raises:
            InvalidApiKey: nobody's, or it was revoked.
            Unavailable: they are not known yet.
        """
        ...

    def holds(self, credential: EngineCredential) -> bool:
        """Whether it is still as it was when it was identified."""
        ...


Written = Callable[[Sequence[tuple[str, int]]], None]
"""Called on the event loop with entries that are in the ledger for good: request id and attempt."""


@dataclass(frozen=True, slots=True)
class Source:
    """Who reports usage: an engine, with the id of its credential, from its journal."""

    engine_id: str
    credential: int
    journal: str


class Recorder(Protocol):
    """Writes the ledger, off the token path."""

    def record(
        self, engine_id: str, journal: str, entries: Sequence[LedgerEntry], written: Written
    ) -> None:
        """Write the entries and then call `written`; returns at once, never blocks, never raises.

        An entry that was written before counts as written. `written` is not called for entries
        that this process could not write before it ended: the engine sends them again.
        """
        ...

    def quarantine(
        self, source: Source, suspects: Sequence[tuple[LedgerEntry, str]], written: Written
    ) -> None:
        """Keep entries that are not to be billed, each with why, for an operator's decision; then
        call `written` with those that are kept. Returns at once, never blocks, never raises.
        """
        ...

    def totals(self, engine_id: str, stats: EngineStats) -> None:
        """Note what the engine's journal counts, for reconciliation. Returns at once."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A request that wants to be the one of its idempotency key that is generated and billed.

    `name` is the key as the client wrote it, unique for one API key; `digest` is the SHA-256 of
    path and body; `request_id` tells claims of the same request apart, `turn` gateways that adopt
    one and the same (`wire.turn_of`).
    """

    key_id: int
    name: str
    digest: bytes
    request_id: str
    turn: int = 1


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A whole answer as it was sent, streams included; `request_id` is that of its request."""

    request_id: str
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Queued:
    """A response that is to be run in the background, by the `id` of its request. `seal` is that of
    its line's batch (`lines.seals`), `once` the digest of idempotency key and body, empty where
    there is none."""

    tenant_id: int
    key_id: int
    id: str
    batch: str
    created_at: datetime
    seal: str
    record: bytes
    once: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a response of the background stands: its status, and the code of the error with which it
    ended, where its record does not say that."""

    status: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The status in which a response of the background ended, and its record from then on."""

    status: str
    record: bytes


class StoredResponses(Protocol):
    """Responses of tenants that keep content, by the ids of their requests, found by their tenant
    alone. Every method raises `Unavailable` where the database is away.

    One that runs in the background is queued before, begun in a turn, and ended once: by the
    highest turn that began, or by whoever cancels or deletes it.
    """

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        """Keep it; False: the tenant keeps nothing any more."""
        ...

    async def read(self, tenant_id: int, id: str) -> bytes | None:
        """What is kept; None: nothing is, or not any longer."""
        ...

    async def delete(self, tenant_id: int, id: str) -> bool:
        """Whether there was something to delete."""
        ...

    async def queue(self, queued: Queued) -> str | None:
        """Keep its record and have it run: its id, or that of the one that was queued under the
        same `once` within a day. None: the tenant keeps nothing any more.

        Raises:
            RateLimitExceeded: so many of the tenant's have not ended.
        """
        ...

    async def standing(self, tenant_id: int, id: str) -> Standing | None:
        """How it stands; None: it is none of the background."""
        ...

    async def begin(self, tenant_id: int, id: str, turn: int) -> bytes | None:
        """The record of one that is run in this turn from now on. None: it has ended, is not stored
        any more, or runs in a higher turn."""
        ...

    async def end(self, tenant_id: int, id: str, turn: int, ended: Ended) -> bool:
        """Keep how it ended; False: it has ended before, or runs in a higher turn."""
        ...

    async def cancel(self, tenant_id: int, id: str) -> None:
        """End it, unless it has ended."""
        ...


class StoredConversations(Protocol):
    """Conversations of tenants that keep content, found by their tenant alone. Every method raises
    `Unavailable` where the database is away."""

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        """Keep a new one; False: the tenant keeps nothing."""
        ...

    async def read(self, tenant_id: int, id: str) -> tuple[bytes, bytes] | None:
        """What is kept of it, and which version that is; None: nothing is, or not any longer."""
        ...

    async def replace(self, tenant_id: int, id: str, version: bytes, record: bytes) -> bool:
        """Keep this in place of that version; False: it is another one by now, or gone."""
        ...

    async def delete(self, tenant_id: int, id: str) -> bool:
        """Whether there was something to delete."""
        ...


class Answers(Protocol):
    """Answers kept by idempotency key, for a day after their request came.

    A claim lasts a few seconds and is renewed while its request runs, so that one of a process
    that died can be taken over. Every method raises `Unavailable` where the database is away.
    """

    async def claim(self, claim: Claim) -> KeptAnswer | bool:
        """The answer that is kept; else True: the claim is won, False: another holds it.

        A claim that ran out and an answer older than a day are overwritten, whatever their body.

        Raises:
            IdempotencyKeyReused: the key stands for another path or body.
        """
        ...

    async def take_over(self, claim: Claim, turns: Mapping[str, int]) -> Claim | None:
        """Take over the claim of a request that an engine has and no gateway, one of these by their
        ids, if it is in this turn: the claim of the next turn. One of a higher turn must have run
        out. None: none of them is this one, with this body, or it was taken over or has an answer.
        """
        ...

    async def give_back(self, claim: Claim) -> None:
        """Undo a `take_over`, as no engine has the request after all: who had it may live, and then
        renews its claim. Else that runs out within seconds."""
        ...

    async def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Hold these for some more seconds, as far as nobody took them over; those of them that go
        on at another gateway, in a higher turn."""
        ...

    async def keep(self, claim: Claim, answer: KeptAnswer) -> bool:
        """End the claim with its answer. False: it was taken over, nothing is kept.

        The same again is True again.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """End a claim without an answer: the next request of this key is a first one."""
        ...
