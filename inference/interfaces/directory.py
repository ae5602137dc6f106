"""API keys and model names: what a key may do, and what a name stands for.

The server makes a Grant from the key alone; nothing else that a client sends changes it.

Amounts of money are integers. A price is in micro-units (millionths) of the currency per million
tokens; tokens times price is therefore in pico-units (1e-12), the unit of costs: exact, never
rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from inference.errors import InferenceError, PermissionDenied
from inference.link.accounts import Usage
from inference.link.engine_info import AdapterRef
from inference.routes import RouteFit

INFERENCE = "inference"
"""The scope of keys that may send requests to models; management keys may lack it."""


MICRO = 10**6


PICO = 10**12
"""Micro- and pico-units in one unit of the currency, such as a dollar."""


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Prices of tokens, in micro-units of the currency per million tokens."""

    prompt: int = 0
    """Price of prompt tokens that the prefix cache did not hold."""
    cached_prompt: int = 0
    output: int = 0

    def or_higher(self, other: TokenPrice) -> TokenPrice:
        """For each kind of tokens the higher of the two prices."""
        return TokenPrice(
            max(self.prompt, other.prompt),
            max(self.cached_prompt, other.cached_prompt),
            max(self.output, other.output),
        )

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
    repairs: bool = False
    """Whether its tenant has malformed answers asked for again (`gateway.repairs`)."""
    overflows: bool = False
    """Whether its tenant allows that its prompts leave the installation (`routing.overflow`)."""

    def require(self, *scopes: str) -> None:
        """Check that the key has one of these scopes.

        Raises:
            PermissionDenied: it has none of them.
        """
        if self.scopes.isdisjoint(scopes):
            wanted = " or ".join(f"`{scope}`" for scope in sorted(scopes))
            raise PermissionDenied(f"This API key lacks the scope {wanted}.")


class SplitArm(msgspec.Struct, frozen=True):
    """Which version of a split a request got (`inference.splitting`)."""

    split_id: int
    candidate: bool
    """Whether it is the candidate, not the stable version."""
    key: int | None
    """The number of its key; None if it was chosen for this request alone."""
    weight: int
    """The split's weight then."""
    copies_to: int | None = None
    """The API key to which a copy for the candidate is billed; None if there is none."""


class TrafficSplit(msgspec.Struct, frozen=True):
    """The share of a target's requests that another version of the adapter gets."""

    id: int
    weight: int
    """Percent of the keys."""
    sticky: str
    """What a key is, a `splitting.StickyBy`."""
    header: str
    """The name of the header with the key, in lower case, if it is one."""
    candidate: ResolvedTarget
    copies_to: int | None = None
    """The id of an API key if it is a shadow: the stable version answers all requests, and the
    candidate gets copies of its share, which are billed to this key."""


class TrafficRoute(msgspec.Struct, frozen=True):
    """The options between which a route chooses for each request.

    `options` are from the cheapest on; those that the key may not use, or that do not exist any
    more, are None, and at least one is not. `best` is the one that answers if nothing is chosen.
    """

    name: str
    options: Sequence[ResolvedTarget | None]
    best: int
    fit: RouteFit | None = None
    """None: nothing is chosen."""
    sure_from: float | None = None
    """Set if it is a cascade that is on: the mean log-probability from which the answer of the
    first of its two options stays (`gateway.cascades`)."""

    def choose(self, text: str, length: int) -> ResolvedTarget:
        """The option that answers a request with this text, an excerpt of one of `length`
        characters; without a text the best option, or the most expensive one if that is None."""
        usable = [at for at, option in enumerate(self.options) if option is not None]
        if self.fit is not None and text:
            chosen = self.fit.choose(text, length, usable)
        else:
            chosen = self.best if self.best in usable else usable[-1]
        option = self.options[chosen]
        assert option is not None, "it is one of the usable ones"
        return option


class ResolvedTarget(msgspec.Struct, frozen=True):
    """What a model name resolves to for a grant: a base model, or one adapter version on it."""

    model: str
    """The name as the client wrote it, shown in the answer."""
    base_model: str
    adapter: AdapterRef | None = None
    version_id: int | None = None
    adapter_id: int | None = None
    limits: tuple[Limits, ...] = ()
    """The adapter's limits, if it has any."""
    price: TokenPrice = TokenPrice()
    """The price when the name was resolved, which is billed."""
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
    batch_price: TokenPrice | None = None
    """The price of lines of batches; None if it is the same."""
    overflow_price: TokenPrice | None = None
    """The price if an overflow engine answers; None if it is the same, or if none may."""
    split: TrafficSplit | None = None
    """Set until the version is chosen (`splitting.choose`)."""
    arm: SplitArm | None = None
    """Set if it was chosen by a split."""
    route: TrafficRoute | None = None
    """Set if the name is that of a route; the rest is that of the option that answers if nothing is
    chosen."""

    def price_on(self, *, overflow: bool) -> TokenPrice:
        """The price if an overflow engine answers, or another one."""
        return self.overflow_price if overflow and self.overflow_price else self.price

    @property
    def reserved_price(self) -> TokenPrice:
        """The price with which it is reserved: for each kind of tokens the highest that its bill
        may have."""
        one, other = self.price, self.overflow_price
        return one if other is None else one.or_higher(other)


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
    price: TokenPrice = TokenPrice()
    """The current price."""

    @classmethod
    def of(cls, grant: Grant, target: ResolvedTarget) -> ModelCard:
        """The card of a target that was resolved for this grant."""
        return cls(
            target.model,
            target.created,
            OUR_MODELS if target.adapter is None and target.route is None else grant.tenant,
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

    async def grant_of(self, key_id: int) -> Grant:
        """The grant of the key of this id, or of the key that it was rotated into, for work that
        was requested with it earlier.

        Raises:
            InvalidApiKey: that key is revoked or expired, or its tenant is suspended.
            Unavailable: as `authenticate`.
        """
        ...

    async def resolve(self, grant: Grant, name: str) -> ResolvedTarget:
        """Resolve the model name.

        Raises:
            UnknownModel: there is no such model, or this key may not use it (indistinguishable).
            Unavailable: as `authenticate`.
        """
        ...

    async def cascade(self, grant: Grant, name: str) -> TrafficRoute | None:
        """The route of this name if it is a cascade that is on. Cheap: most names are not.

        Raises:
            UnknownModel: the key may use none of its options.
            Unavailable: as `authenticate`.
        """
        ...

    async def models(self, grant: Grant) -> list[ModelCard]:
        """Every model that this key may use, sorted by name."""
        ...

    def on_revoked(self, callback: Callable[[int, InferenceError], None]) -> None:
        """Call `callback(key_id, error)` when a key in use may no longer infer."""
        ...
