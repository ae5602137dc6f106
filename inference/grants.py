"""What the token path needs of the platform: authentication, model names, limits, recorded usage.

`tenants` implements the protocols; `gateway.asgi` wires them in. The server makes a Grant from the
key alone; nothing else that a client sends changes it.

Amounts of money are integers. A price is in micro-units (millionths) of the currency per million
tokens; tokens times price is therefore in pico-units (1e-12), the unit of costs: exact, never
rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import msgspec

from inference.errors import InferenceError, PermissionDenied
from inference.link.wire import AdapterRef, EngineStats, LedgerEntry, Usage

INFERENCE = "inference"
"""The scope of keys that may send requests to models; management keys may lack it."""
MICRO = 10**6
PICO = 10**12
"""Micro- and pico-units in one unit of the currency, such as a dollar."""


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of tokens, in micro-units of the currency per million tokens."""

    prompt: int = 0
    """Price of prompt tokens that the prefix cache did not hold."""
    cached_prompt: int = 0
    output: int = 0

    def cost(self, usage: Usage) -> int:
        """The cost in pico-units, exact."""
        uncached = usage.prompt_tokens - usage.cached_tokens
        return (
            uncached * self.prompt
            + usage.cached_tokens * self.cached_prompt
            + usage.completion_tokens * self.output
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one scope (a tenant, a key, an adapter). Compare by value.

    `scope_id` identifies the scope where its counters are kept: `t12`, `k7`, `a3`, with the row's
    id; of a rotated key, the first key's. `shown` names it in messages (``tenant `acme` ``).
    `values` has the limits that are set, by the name of their kind (`tenants.limits.kinds`).
    """

    scope_id: str
    shown: str
    values: Mapping[str, int] = field(default_factory=dict)

    def __hash__(self) -> int:
        """By scope alone, which is cheap, as every request is hashed; a scope rarely has two sets
        of limits at the same time."""
        return hash(self.scope_id)


@dataclass(frozen=True, slots=True)
class Grant:
    """What one API key may do, as of the last check. Compare by value.

    `models` is the allow-list of names without a version (None: all of the tenant's); `salt` the
    tenant's prefix-cache salt; `expires_at` a unix time in seconds; `limits` those of the tenant
    and of the key, if they have any; `lane` is `interactive` or `batch`.
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
    """The key's prefix, by which people recognise it; for logs."""
    keeps_content: bool = False
    """Whether its tenant keeps prompts and answers, and the key does not override that."""

    def require(self, *scopes: str) -> None:
        """Check that the key has one of these scopes.

        Raises:
            PermissionDenied: it has none of them.
        """
        if self.scopes.isdisjoint(scopes):
            wanted = " or ".join(f"`{scope}`" for scope in sorted(scopes))
            raise PermissionDenied(f"This API key lacks the scope {wanted}.")


class Target(msgspec.Struct, frozen=True):
    """What a model name resolves to for a grant: a base model, or one adapter version on it."""

    model: str
    """The name as the client wrote it, shown in the answer."""
    base_model: str
    adapter: AdapterRef | None = None
    version_id: int | None = None
    adapter_id: int | None = None
    limits: tuple[Limits, ...] = ()
    """The adapter's limits, if it has any."""
    price: Price = Price()
    """The price when the name was resolved, which is reserved and billed."""
    max_model_len: int = 0
    """Longest prompt and answer together, in tokens; 0 if unknown."""
    created: int = 0
    """When the base model or the adapter was added, a unix time in seconds."""
    tried: frozenset[str] | None = None
    """The revisions (`ModelInfo.pool_digest`) on which the adapter passed; None if there is no
    adapter or it is unknown."""
    ready: frozenset[str] | None = None
    """The revisions on which all live adapters of the tenant passed; None if it has none or it is
    unknown."""
    defaults: bytes = b""
    """Fields for bodies that lack them: JSON without the braces, with a trailing comma."""
    batch_price: Price | None = None
    """The price of lines of batches; None if it is the same."""


OUR_MODELS = "lorikeet"
"""The owner shown for base models; adapters are owned by their tenant."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of `GET /v1/models`; `created` is a unix time in seconds."""

    id: str
    created: int
    owned_by: str
    root: str
    """The base model that it runs on."""
    max_model_len: int = 0
    """Longest prompt and answer together, in tokens; 0 if unknown."""
    price: Price = Price()
    """The current price."""

    @classmethod
    def of(cls, grant: Grant, target: Target) -> ModelCard:
        """The card of a target that was resolved for this grant."""
        return cls(
            target.model,
            target.created,
            OUR_MODELS if target.adapter is None else grant.tenant,
            target.base_model,
            target.max_model_len,
            target.price,
        )


class Directory(Protocol):
    """Resolves keys and model names; from memory, once seen."""

    async def authenticate(self, secret: str) -> Grant:
        """The grant of this key.

        Raises:
            InvalidApiKey: unknown, revoked, expired, or its tenant is suspended.
            Unavailable: it is not in memory and the database cannot be reached.
        """
        ...

    async def resolve(self, grant: Grant, name: str) -> Target:
        """Resolve the model name.

        Raises:
            UnknownModel: there is no such model, or this key may not use it (indistinguishable).
            Unavailable: as `authenticate`.
        """
        ...

    async def models(self, grant: Grant) -> list[ModelCard]:
        """Every model that this key may use, sorted by name."""
        ...

    def on_revoked(self, callback: Callable[[int, InferenceError], None]) -> None:
        """Call `callback(key_id, error)` when a key in use may no longer infer."""
        ...


class Ask(msgspec.Struct, frozen=True):
    """What to reserve for a request.

    It wants `output_tokens` over all choices; if fewer are left it gets those, unless they are
    fewer than `least_output_tokens`: then it is refused. `quantities` is what it uses besides
    tokens and the request itself, by the name under which a kind of limit counts it, such as
    `images`.
    """

    prompt_tokens: int
    output_tokens: int
    least_output_tokens: int
    quantities: dict[str, int] = {}


class Room(msgspec.Struct, frozen=True):
    """How much of a limit is left, for the `x-ratelimit` headers; `reset_s` is from now."""

    limit: int
    remaining: int
    reset_s: float


class Reservation(msgspec.Struct):
    """What was reserved for the request `id`; `Limiter.extend` increases it.

    `output_tokens` may be generated, None if nothing limits tokens. `rooms` is keyed by the end of
    the header's name (`requests`, `tokens`), each of the scope that has the least left.
    """

    id: str
    output_tokens: int | None = None
    rooms: dict[str, Room] = {}


class Limiter(Protocol):
    """Limits over all scopes: reserved before a request is dispatched, settled after it ended.

    The first call that settles or releases a reservation counts; later ones for the same id change
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
        """Reserve that many more output tokens, or as many as are left (at least one).

        Mutates the reservation.

        Raises:
            RateLimitExceeded, InsufficientQuota: none are left; nothing changed.
        """
        ...

    async def take_over(self, id: str, grant: Grant, target: Target) -> Reservation:
        """Continue with what another gateway reserved for this request. If that was given back
        already, nothing is reserved, so that the answer is not counted twice. Never raises."""
        ...

    def hand_over(self, id: str) -> None:
        """Another gateway continues the request, or may do so: this one does not settle it."""
        ...

    def settle(self, id: str, usage: Usage | None) -> None:
        """The request ended: replace what was reserved by what was used, free its concurrency slot.

        If `usage` is None, it is unknown and the estimate stays. Returns at once; never raises.
        """
        ...

    def release(self, id: str) -> None:
        """The request was never started: give everything back. Returns at once; never raises."""
        ...

    async def look(self, limits: tuple[Limits, ...]) -> Reservation:
        """The current `rooms` of these limits; reserves nothing."""
        ...


@dataclass(frozen=True, slots=True)
class EngineCredential:
    """The credential of an engine. Compare by value.

    `id` is its row's, 0 if engines share a token; `pools` the base models that it may serve, None
    for all; `prefix` is its secret's, so it changes when the secret is rotated.
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
        """The credential with this secret; compared in constant time.

        Raises:
            InvalidApiKey: there is none, or it was revoked.
            Unavailable: the credentials have not been loaded yet.
        """
        ...

    def holds(self, credential: EngineCredential) -> bool:
        """Whether it is still valid and unchanged since it was identified."""
        ...


Written = Callable[[Sequence[tuple[str, int]]], None]
"""Called on the event loop with entries (request id, attempt) that are durable in the ledger."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a usage report: an engine, the id of its credential, and its journal."""

    engine_id: str
    credential: int
    journal: str


class Recorder(Protocol):
    """Writes the ledger, off the token path."""

    def record(
        self, engine_id: str, journal: str, entries: Sequence[LedgerEntry], written: Written
    ) -> None:
        """Write the entries and then call `written`; returns at once, never blocks, never raises.

        An entry that was written before counts as written. `written` is not called for entries that
        this process cannot write before it ends: the engine sends them again.
        """
        ...

    def quarantine(
        self, source: Source, suspects: Sequence[tuple[LedgerEntry, str]], written: Written
    ) -> None:
        """Store entries that must not be billed, each with the reason, until an operator decides;
        then call `written` with those stored. Returns at once, never blocks, never raises.
        """
        ...

    def totals(self, engine_id: str, stats: EngineStats) -> None:
        """Record the totals of the engine's journal, for reconciliation. Returns at once."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A request's claim to be the one that is generated and billed for its idempotency key.

    `name` is the key as the client wrote it, unique within an API key; `digest` is the SHA-256 of
    path and body; `request_id` distinguishes claims of repeated requests, `turn` gateways that
    adopt the same request (`wire.turn_of`).
    """

    key_id: int
    name: str
    digest: bytes
    request_id: str
    turn: int = 1


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A whole answer as it was sent, including streams; `request_id` is that of its request."""

    request_id: str
    content_type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Queued:
    """A response to run in the background. `id` is its request's; `seal` is that of its line's
    batch (`lines.seals`); `once` is the digest of idempotency key and body, empty without a key."""

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
    """The status of a background response, and the code of the error that ended it, if its record
    does not have that."""

    status: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """The final status of a background response, and its final record."""

    status: str
    record: bytes


class StoredResponses(Protocol):
    """Responses of tenants that keep content, by the ids of their requests; only visible to their
    tenant. Every method raises `Unavailable` if the database cannot be reached.

    A background response is queued, begun in a turn, and ended once: by the highest turn that
    began, or by being cancelled or deleted.
    """

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        """Store it; False if the tenant no longer keeps content."""
        ...

    async def read(self, tenant_id: int, id: str) -> bytes | None:
        """The stored record; None if there is none, or none any longer."""
        ...

    async def delete(self, tenant_id: int, id: str) -> bool:
        """Delete it; returns whether it existed."""
        ...

    async def queue(self, queued: Queued) -> str | None:
        """Store its record and queue it; returns its id, or that of the response that was queued
        with the same `once` within a day. None if the tenant no longer keeps content.

        Raises:
            RateLimitExceeded: too many of the tenant's have not ended.
        """
        ...

    async def standing(self, tenant_id: int, id: str) -> Standing | None:
        """Its status; None if it is not a background response."""
        ...

    async def begin(self, tenant_id: int, id: str, turn: int) -> bytes | None:
        """Begin it in this turn; returns its record. None if it has ended, is no longer stored, or
        runs in a higher turn."""
        ...

    async def end(self, tenant_id: int, id: str, turn: int, ended: Ended) -> bool:
        """Store how it ended; False if it has ended before, or runs in a higher turn."""
        ...

    async def cancel(self, tenant_id: int, id: str) -> None:
        """End it, unless it has ended."""
        ...


class StoredConversations(Protocol):
    """Conversations of tenants that keep content; only visible to their tenant. Every method raises
    `Unavailable` if the database cannot be reached."""

    async def keep(self, tenant_id: int, id: str, record: bytes) -> bool:
        """Store a new one; False if the tenant keeps no content."""
        ...

    async def read(self, tenant_id: int, id: str) -> tuple[bytes, bytes] | None:
        """The stored record and its version; None if there is none, or none any longer."""
        ...

    async def replace(self, tenant_id: int, id: str, version: bytes, record: bytes) -> bool:
        """Replace that version by this record; False if the version has changed, or it is gone."""
        ...

    async def delete(self, tenant_id: int, id: str) -> bool:
        """Delete it; returns whether it existed."""
        ...


class Answers(Protocol):
    """Answers kept by idempotency key, for a day after their request arrived.

    A claim lasts a few seconds and is renewed while its request runs, so that the claim of a
    process that died can be taken over. Every method raises `Unavailable` if the database cannot be
    reached.
    """

    async def claim(self, claim: Claim) -> KeptAnswer | bool:
        """The answer that is kept; else True if the claim is won, False if another one holds it.

        Expired claims and answers older than a day are overwritten, even if their body differs.

        Raises:
            IdempotencyKeyReused: the key was used with another path or body.
        """
        ...

    async def take_over(self, claim: Claim, turns: Mapping[str, int]) -> Claim | None:
        """Take over the claim of a request that runs on an engine without a gateway; returns the
        claim of the next turn. `turns` has the turns of such requests by id.

        The claim's request must be among them, in that turn; a claim of a higher turn must have
        expired. None if it is not, has another body, was taken over, or has an answer.
        """
        ...

    async def give_back(self, claim: Claim) -> None:
        """Undo a `take_over`, because no engine has the request after all: if the previous holder
        is alive, it renews its claim; otherwise the claim expires within seconds."""
        ...

    async def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Extend these claims by some seconds, unless they were taken over; returns those that
        continue at another gateway, in a higher turn."""
        ...

    async def keep(self, claim: Claim, answer: KeptAnswer) -> bool:
        """End the claim with its answer. False if it was taken over; nothing is kept then.

        Repeating a successful call returns True again.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """End a claim without an answer: the next request with this key starts anew."""
        ...
