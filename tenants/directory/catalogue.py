"""Resolves model names of one tenant, with prices and limits. Pure: `reader` reads the rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

import msgspec

from inference.errors import UnknownModel
from inference.interfaces.directory import (
    Grant,
    Limits,
    ModelCard,
    ResolvedTarget,
    TokenPrice,
    TrafficRoute,
    TrafficSplit,
)
from inference.link.engine_info import AdapterRef
from inference.pools import Pool, PoolRollout, Revisions
from tenants.limits import ceilings
from tenants.limits.ceilings import Sets
from tenants.naming import ISOLATION_TENANTS, LIVE, TUNED, adapter_of, lora_name, tuned_name

DIGEST_PREFIX = re.compile(r"[0-9a-f]{8,64}")
SHOWN_CHARS = 200
"""Characters of an unknown name that an error message repeats at most."""


Prices = Sequence[tuple[float, int, int, int]]
"""Start (unix time in seconds, earliest first), and the figures of `interfaces.directory.Price`.

Includes future prices, so that cached entries do not go stale merely because time passes.
"""


@dataclass(frozen=True, slots=True)
class BaseRow:
    """A base model; `created` is a unix time in seconds."""

    name: str
    created: int
    max_model_len: int
    prices: Prices = ()
    defaults: bytes = b""
    """In the form of `ResolvedTarget.defaults`."""
    batch_prices: Prices = ()
    overflow_prices: Prices = ()


@dataclass(frozen=True, slots=True)
class PoolRow:
    """The digests of a base model's revisions, and the rollout that is under way, with the slugs of
    tenants that go first and last."""

    base_model: str
    serving: list[str]
    waiting: list[str]
    rollout_id: int | None = None
    target: str = ""
    weight: int = 0
    first: Sequence[str] = ()
    last: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A ready version, and the aliases that point at it.

    Its prices and `limits` are its adapter's; `rank` and `modules` those of its configuration;
    `tried` has the digests of the revisions on which it passed, None if that is not known.
    """

    adapter_id: int
    adapter: str
    base_model: str
    created: int
    id: int
    number: int
    digest: str
    aliases: list[str]
    prices: Prices = ()
    limits: Sets | None = None
    rank: int | None = None
    modules: list[str] | None = None
    tried: list[str] | None = None
    batch_prices: Prices = ()
    splits: list[dict[str, Any]] | None = None
    """The splits whose candidate it is, each with the fields of `TrafficSplit` and `alias`."""


@dataclass(frozen=True, slots=True)
class RouteRow:
    """A route of the tenant. `options` are names of models, from the cheapest on, and `best` is the
    place of one of them; `created` is a unix time in seconds."""

    id: int
    name: str
    options: list[str]
    best: int
    created: int
    fit: int | None = None
    """The number of the fit that chooses; None if it is off, or a cascade."""
    sure_from: float | None = None
    """As `TrafficRoute.sure_from`."""


@dataclass(frozen=True, slots=True)
class PinRow:
    """The live version of a pinned adapter."""

    tenant: str
    adapter: str
    base_model: str
    digest: str
    rank: int | None = None
    modules: list[str] | None = None
    tried: list[str] | None = None


def unknown(name: str, why: str = "") -> UnknownModel:
    """The same error for models that do not exist and those of other tenants."""
    shown = name if len(name) <= SHOWN_CHARS else f"{name[:SHOWN_CHARS]}…"
    message = f"The model `{shown}` does not exist or you do not have access to it."
    return UnknownModel(f"{message} {why}".rstrip(), param="model")


class Catalogue:
    """The ready adapter versions and the routes of one tenant."""

    def __init__(self, rows: Iterable[VersionRow], routes: Iterable[RouteRow] = ()) -> None:
        found: defaultdict[str, list[VersionRow]] = defaultdict(list)
        for row in rows:
            found[row.adapter].append(row)
        self._versions: Mapping[str, list[VersionRow]] = dict(found)
        self._splits = {
            (row.adapter, split["alias"]): (split, row)
            for rows in found.values()
            for row in rows
            for split in row.splits or ()
        }
        # An adapter's name is never that of a route; if it were, the adapter would have it.
        self.routes: Mapping[str, RouteRow] = {
            route.name: route for route in routes if route.name not in found
        }
        self._limits: dict[int, tuple[Limits, ...]] = {}
        self._ready: dict[str, Revisions | None] = {}

    def find(self, name: str) -> VersionRow:
        """The version that a name refers to.

        `adapter` is its live version; `adapter@3`, `adapter@<alias>` and `adapter@<digest prefix>`
        (8 hexadecimal digits or more) pin one.

        Raises:
            UnknownModel: the name refers to no version, or is ambiguous.
        """
        adapter, at, pin = adapter_of(name).partition("@")
        versions = self._versions.get(adapter, [])
        if not at:
            found = [row for row in versions if LIVE in row.aliases]
        else:
            found = _pinned(versions, pin)
        if len(found) > 1:
            raise unknown(
                name,
                f"`{pin}` matches the beginning of {len(found)} digests: use more of its digits.",
            )
        if not found:
            raise unknown(name)
        return found[0]

    def split(self, name: str) -> tuple[Mapping[str, Any], VersionRow] | None:
        """The split of the alias that this name refers to, with its candidate; None if there is
        none, or the name pins a version."""
        if not self._splits:
            return None
        adapter, _, alias = adapter_of(name).partition("@")
        return self._splits.get((adapter, alias or LIVE))

    def limits(self, row: VersionRow) -> tuple[Limits, ...]:
        """The limits in force for the version's adapter; computed on first use."""
        found = self._limits.get(row.adapter_id)
        if found is None:
            shown = f"adapter `{row.adapter}`"
            found = ceilings.limits(f"a{row.adapter_id}", shown, row.limits)
            self._limits[row.adapter_id] = found
        return found

    def ready(self, base_model: str) -> Revisions | None:
        """The revisions on which all live versions on this base model passed; None if there are no
        such versions, or it is not known. Computed on first use."""
        if base_model not in self._ready:
            tried = [
                frozenset(row.tried)
                for row in self.live()
                if row.base_model == base_model and row.tried is not None
            ]
            self._ready[base_model] = reduce(frozenset.intersection, tried) if tried else None
        return self._ready[base_model]

    def live(self) -> list[VersionRow]:
        """The live version of each adapter that has one."""
        return [row for rows in self._versions.values() for row in rows if LIVE in row.aliases]


def _pinned(versions: list[VersionRow], pin: str) -> list[VersionRow]:
    by_number = [row for row in versions if str(row.number) == pin]
    by_alias = [row for row in versions if pin in row.aliases]
    if by_number or by_alias or not DIGEST_PREFIX.fullmatch(pin):
        return by_number or by_alias
    return [row for row in versions if row.digest.startswith(pin)]


def allowed(grant: Grant, name: str) -> bool:
    """Whether the key's allow-list contains this name, given without a version."""
    return grant.models is None or name in grant.models


def price_at(now: float, *lists: Prices) -> TokenPrice:
    """The price at this unix time from the first list that has one; free if none has."""
    for prices in lists:
        for starts_at, *figures in reversed(prices):
            if starts_at <= now:
                return TokenPrice(*figures)
    return TokenPrice()


def batch_price_at(now: float, *rows: BaseRow | VersionRow) -> TokenPrice | None:
    """The price of batch lines at this unix time; None if the standard price applies. Any price of
    an earlier row, batch or standard, takes precedence over those of later rows."""
    if not any(row.batch_prices for row in rows):
        return None
    return price_at(now, *(prices for row in rows for prices in (row.batch_prices, row.prices)))


def overflow_price_at(now: float, grant: Grant, base: BaseRow) -> TokenPrice | None:
    """The price of what overflow engines answer at this unix time; None if the standard price
    applies, or if the tenant's requests never go there."""
    if not (grant.overflows and base.overflow_prices):
        return None
    return price_at(now, base.overflow_prices, base.prices)


def resolve(
    grant: Grant, name: str, bases: Mapping[str, BaseRow], own: Catalogue, *, now: float
) -> ResolvedTarget:
    """Resolve a name for the grant at this unix time; of a route without its fit.

    Names of base models take precedence over those of adapters, which fine-tuned models have too.

    Raises:
        UnknownModel: there is no such model, or the key may not use it.
    """
    if name not in bases and (route := own.routes.get(name)) is not None:
        return _route_target(grant, route, bases, own, now=now)
    return _model(grant, name, bases, own, now=now)


def _route_target(
    grant: Grant, row: RouteRow, bases: Mapping[str, BaseRow], own: Catalogue, *, now: float
) -> ResolvedTarget:
    options = list[ResolvedTarget | None]()
    for name in row.options:
        try:
            options.append(_model(grant, name, bases, own, now=now))
        except UnknownModel:
            options.append(None)
    if not any(options):
        raise unknown(row.name)
    route = TrafficRoute(row.name, options, row.best, sure_from=row.sure_from)
    fallback = route.choose("", 0)
    return msgspec.structs.replace(
        fallback, model=row.name, created=row.created, split=None, route=route
    )


def _model(
    grant: Grant, name: str, bases: Mapping[str, BaseRow], own: Catalogue, *, now: float
) -> ResolvedTarget:
    """A base model, or a version of an adapter. Raises UnknownModel."""
    if not allowed(grant, name if name in bases else adapter_of(name).partition("@")[0]):
        raise unknown(name)
    if name in bases:
        base = bases[name]
        return ResolvedTarget(
            name,
            name,
            price=price_at(now, base.prices),
            batch_price=batch_price_at(now, base),
            overflow_price=overflow_price_at(now, grant, base),
            max_model_len=base.max_model_len,
            created=base.created,
            ready=own.ready(name),
            defaults=base.defaults,
        )
    row = own.find(name)
    if name.startswith(TUNED) and not _named(name, grant.tenant, row):
        raise unknown(name)
    target = _target(grant, name, row, bases, own, now=now)
    if (found := own.split(name)) is None:
        return target
    fields, candidate = found
    split = TrafficSplit(
        fields["id"],
        fields["weight"],
        fields["sticky"],
        fields["header"],
        _target(grant, name, candidate, bases, own, now=now),
        fields["copies_to"],
    )
    return msgspec.structs.replace(target, split=split)


def _target(
    grant: Grant,
    name: str,
    row: VersionRow,
    bases: Mapping[str, BaseRow],
    own: Catalogue,
    *,
    now: float,
) -> ResolvedTarget:
    # Missing only while the notice of a new base model is under way.
    base = bases.get(row.base_model, BaseRow(row.base_model, 0, 0))
    return ResolvedTarget(
        model=name,
        base_model=row.base_model,
        adapter=_ref(grant.tenant, row),
        version_id=row.id,
        adapter_id=row.adapter_id,
        limits=own.limits(row),
        price=price_at(now, row.prices, base.prices),
        batch_price=batch_price_at(now, row, base),
        max_model_len=base.max_model_len,
        created=row.created,
        tried=None if row.tried is None else frozenset(row.tried),
        ready=own.ready(row.base_model),
        defaults=base.defaults,
    )


def _named(name: str, tenant: str, row: VersionRow) -> bool:
    """Whether the name of a fine-tuned model is that of this version's adapter."""
    return f"{name}@".startswith(f"{tuned_name(row.base_model, tenant, row.adapter)}@")


def defaults_of(fields: Mapping[str, object]) -> bytes:
    """Encode the fields in the form of `ResolvedTarget.defaults`."""
    return msgspec.json.encode(fields)[1:-1] + b"," if fields else b""


def pools(rows: Iterable[PoolRow]) -> dict[str, Pool]:
    """The pool of each base model that has a known revision."""
    return {row.base_model: _pool(row) for row in rows if row.serving or row.waiting or row.target}


def _pool(row: PoolRow) -> Pool:
    rollout = None
    if row.rollout_id is not None:
        # The check of isolation uses the new revision before any customer does.
        first, last = frozenset(row.first).union(ISOLATION_TENANTS), frozenset(row.last)
        rollout = PoolRollout(row.rollout_id, row.target, row.weight, first, last)
    return Pool(frozenset(row.serving), frozenset(row.waiting), rollout)


def tried(rows: Iterable[PinRow]) -> dict[str, Revisions]:
    """The revisions on which each pinned adapter may be loaded, by its digest."""
    return {row.digest: frozenset(row.tried) for row in rows if row.tried is not None}


def pins(rows: Iterable[PinRow]) -> dict[str, list[AdapterRef]]:
    """The adapters to keep loaded, by base model."""
    found: defaultdict[str, list[AdapterRef]] = defaultdict(list)
    for row in rows:
        found[row.base_model].append(_ref(row.tenant, row))
    return dict(found)


def _ref(tenant: str, row: VersionRow | PinRow) -> AdapterRef:
    name = lora_name(tenant, row.adapter, row.digest)
    return AdapterRef(name, row.digest, row.rank or 0, tuple(row.modules or ()))


def cards(
    grant: Grant, bases: Mapping[str, BaseRow], own: Catalogue, *, now: float
) -> list[ModelCard]:
    """Every model that the key may use, by name, with its price at this unix time; routes too, each
    with that of the option that answers if nothing is chosen."""
    found = list[ModelCard]()
    for name in sorted({*bases, *(row.adapter for row in own.live()), *own.routes}):
        with suppress(UnknownModel):
            found.append(ModelCard.of(grant, resolve(grant, name, bases, own, now=now)))
    return found
