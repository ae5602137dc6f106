"""Which engine gets a request. No sockets, no loop: engines and their states in, a choice out.

Engines of one base model may differ: during a rollout one takes adapters of rank 64 and another of
rank 16, or only one has a tool parser. A request goes only to an engine that can do it. Where none
can, it depends on whose matter that is. What the operator's fleet lacks (an engine, a rank, a
module, an operation) is `NoEngine`, which may pass. What the client asked for and no engine of this
base model offers (a longer context, tools) goes to an engine all the same, whose error names the
field and the limit. Only what no such model does (a chat with one that embeds) is `never_done`.

Among those that can, the cheapest gets it, in tokens to compute before its first one comes:

- the prompts that wait there already, and what of its own prompt the engine does not hold
  (`warmth`);
- its adapter, if that is not loaded or its slot not free: what a load costs in waiting;
- what the engine is loaded above the others, and what its cache has no room for. So what is warm
  draws requests until it costs the balance more than it saves, and a hot adapter or prompt is
  loaded on further engines then and not before.

Who holds nothing of a request would be chosen by chance, by each gateway another one. So such a
request goes home: to the engine that its tenant and adapter rank first, the same one for all
gateways, unless that is much dearer. Where one adapter of a tenant has so large a share of the
traffic that it fills a good part of an engine, or several (`popularity`), it has that many homes,
on which its load costs nothing: it gets there before the first of them is full.

Among equals the less loaded of two random ones goes first, and of many that hold something a few
random ones are looked at: figures are as old as an engine's last report, other gateways choose by
the same ones, and the single best engine would get everything until the next report. For the same
reason what a gateway dispatches counts at once, for warm, loaded and waiting.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import nlargest
from operator import attrgetter
from typing import NamedTuple

from inference.errors import InvalidRequest, NoEngine
from inference.gateway.routing.engine_state import LOAD_TOKENS, EngineState, Needs
from inference.link.wire import AdapterRef
from inference.operations.registry import OPERATIONS

LEVEL = 0.1
"""What each token on an engine above the average costs. Little: it decides where conversations
begin, and leaves them where they are."""
EVEN = 1.4
"""How far above the average an engine is loaded before each token costs a whole one."""
IDLE_TOKENS = 4096
"""An engine with less than that is not loaded: small differences are no reason to move."""
TIE_TOKENS = 64
HOME_TOKENS = 1024
"""How much dearer than the cheapest engine a request's home may be."""
NEAREST = 4
"""Engines from home on that are looked at for a request of which nobody holds anything."""
ROOMY = 5
"""Times as many homes as engines that a tenant's adapter could fill: with fewer, what else lives
there is pushed out; with more, loads and hits suffer."""
HOMES_AT_ONCE = 2
"""Homes that are looked at, of several, by chance: else all gateways choose the same one until its
next report."""
MAX_HOLDERS = 4
"""Engines that are looked at of those that hold its beginning, or its adapter. With more, gateways
meet on the same ones."""

RETRY_AFTER_S = 15.0
"""An engine that was lost is back within its start-up time, about this long on a small machine."""

_random = random.Random()
_ODD = 0x9E37_79B9_7F4A_7C15
_64_BITS = (1 << 64) - 1


def choose(engines: Iterable[EngineState], needs: Needs, rng: random.Random | None = None) -> str:
    """The id of the engine that should get a request.

    Looks closely at a few engines only: those that hold something of it, and where these cost more
    than a cold one could, at a few others.

    Raises:
        NoEngine: none of them serves this base model, takes new work and can do it.
    """
    able = _able(engines, needs)
    return able[0].id if len(able) == 1 else cheapest(able, needs, rng or _random).id


def tier_of(engines: Iterable[EngineState], needs: Needs) -> frozenset[str]:
    """The revisions that should run a request: of its first tier with an engine that can; where
    none can, of the first with any. How full they are is no reason for another tier.

    Raises:
        NoEngine: no engine of any tier is there.
    """
    kinds = {engine.kind: engine for engine in engines if not engine.draining}.values()
    here = {engine.pool for engine in kinds}
    there = [tier for tier in needs.tiers or () if not here.isdisjoint(tier)]
    if len(there) > 1:
        able = {engine.pool for engine in kinds if not any(engine.lacks(needs))}
        there = [tier for tier in there if not able.isdisjoint(tier)] or there
    if there:
        return there[0]
    name = needs.base_model
    if needs.adapter is None or all(engine.info.name != name for engine in kinds):
        raise NoEngine(f"No engine that serves `{name}` is connected.", retry_after_s=RETRY_AFTER_S)
    raise NoEngine(
        f"This adapter was not tried yet on the engines that serve `{name}` now.",
        retry_after_s=RETRY_AFTER_S,
    )


def never_done(engines: Iterable[EngineState], needs: Needs) -> InvalidRequest | None:
    """Why no engine of this base model will ever run a request: models of this sort do no such
    thing. None where one may, or where no engine says what it does."""
    infos = [engine.info for engine in engines if engine.info.name == needs.base_model]
    done = frozenset[str]().union(*(info.operations for info in infos))
    alike = OPERATIONS.alike(needs.operation)
    if not done or not all(info.operations for info in infos):
        return None
    if not alike or not alike.isdisjoint(done):
        return None
    offered = ", ".join(one.path for one in OPERATIONS if one.name in done)
    return InvalidRequest(
        f"`{needs.base_model}` does {offered}: ask another model for this.", param="model"
    )


def cheapest(able: list[EngineState], needs: Needs, rng: random.Random) -> EngineState:
    """Of at least two that can do it."""
    mean = sum([engine.load for engine in able]) / len(able)
    hashes = needs.prefix.numbers() if needs.prefix else ()
    holders = _holders(able, needs.adapter, hashes, rng)
    offers = _offers(holders, needs, hashes, mean)
    homes = [engine for engine in _homes(able, needs, rng) if engine not in holders]
    offers += _offers(homes, replace(needs, adapter=None), hashes, mean) if homes else []
    cold = needs.prompt_tokens + (0 if needs.adapter is None else LOAD_TOKENS)
    if offers and min(offers, key=_COST).cost <= cold:
        return _best(offers, rng)
    home = needs.home
    others = _strangers(able, home, rng)
    strangers = _offers(others, needs, hashes, mean)
    least = min(strangers, key=_COST).cost
    if offers and min(offers, key=_COST).cost <= least:
        return _best(offers, rng)
    if home is None:
        return _best(strangers, rng)
    return next(one.engine for one in strangers if one.cost <= least + HOME_TOKENS)


class _Offer(NamedTuple):
    """What it costs to give a request to an engine."""

    cost: float
    load: int
    engine: EngineState


_COST, _LOAD = attrgetter("cost"), attrgetter("load")


def _holders(
    able: list[EngineState], adapter: AdapterRef | None, hashes: Sequence[int], rng: random.Random
) -> list[EngineState]:
    """Those that hold its adapter or a beginning of its prompt; where they are many, those that
    hold more of it, or some of them."""
    holders: list[EngineState] = []
    if hashes:
        holders = [engine for engine in able if hashes[0] in engine.warmth.known]
        for part in (0.25, 0.5, 0.75):
            if len(holders) <= MAX_HOLDERS:
                break
            hash = hashes[int(part * len(hashes))]
            holders = [engine for engine in holders if hash in engine.warmth.known] or holders
    if adapter is not None:
        name = adapter.name
        also = [engine for engine in able if name in engine.adapters and engine not in holders]
        holders += also if len(also) <= MAX_HOLDERS else rng.sample(also, MAX_HOLDERS)
    return holders if len(holders) <= 2 * MAX_HOLDERS else rng.sample(holders, 2 * MAX_HOLDERS)


def _homes(able: list[EngineState], needs: Needs, rng: random.Random) -> list[EngineState]:
    """Some of those on which its adapter should be whatever its load costs; none of most."""
    count = round(ROOMY * needs.share * len(able))
    if count < 2 or (home := needs.home) is None:
        return []
    homes = _nearest(able, home, count)
    return rng.sample(homes, min(HOMES_AT_ONCE, len(homes)))


def _nearest(able: list[EngineState], home: int, count: int) -> list[EngineState]:
    """The first so many in the order of this home."""
    ranks = [(home ^ engine.number) * _ODD & _64_BITS for engine in able]
    return [able[at] for at in nlargest(count, range(len(able)), key=ranks.__getitem__)]


def _strangers(able: list[EngineState], home: int | None, rng: random.Random) -> list[EngineState]:
    """A few to choose from where nobody holds anything: home and those that would be next, in their
    order, and two by chance."""
    one, step = int(rng.random() * len(able)), int(rng.random() * (len(able) - 1))
    two = [able[one], able[(one + 1 + step) % len(able)]]
    if home is None:
        return two
    return [*_nearest(able, home, NEAREST), *two]


def _offers(
    engines: list[EngineState], needs: Needs, hashes: Sequence[int], mean: float
) -> list[_Offer]:
    offers: list[_Offer] = []
    tokens: list[int] = []
    level = max(IDLE_TOKENS, mean)
    most = EVEN * level
    for engine in engines:
        load = engine.load
        cost = needs.prompt_tokens + engine.queue + LEVEL * (max(load, IDLE_TOKENS) - level)
        if load > most:
            cost += load - most
        cost += max(0, load + needs.prompt_tokens - engine.info.kv_tokens)
        if needs.prefix is not None and (held := engine.warmth.longest(hashes)):
            tokens = tokens or needs.prefix.tokens(needs.prompt_tokens)
            cost -= tokens[held - 1]
        if needs.adapter is not None:
            cost += engine.adapter_cost(needs.adapter.name)
        offers.append(_Offer(cost, load, engine))
    return offers


def _best(offers: list[_Offer], rng: random.Random) -> EngineState:
    """The cheapest; of several like it, the less loaded of two by chance."""
    most = min(offers, key=_COST).cost + TIE_TOKENS
    tied = [one for one in offers if one.cost <= most]
    if len(tied) > 2:
        tied = rng.sample(tied, 2)
    return min(tied, key=_LOAD).engine


def _able(engines: Iterable[EngineState], needs: Needs) -> list[EngineState]:
    """Those that can do it.

    Raises:
        NoEngine: there is none.
    """
    serving = [e for e in engines if e.info.name == needs.base_model and not e.draining]
    if not serving:
        raise NoEngine(
            f"No engine that serves `{needs.base_model}` is connected.", retry_after_s=RETRY_AFTER_S
        )
    kinds = {engine.kind: engine for engine in serving}
    able = {kind for kind, engine in kinds.items() if not any(engine.lacks(needs))}
    if not able:
        raise NoEngine(_lacking(list(kinds.values()), needs), retry_after_s=RETRY_AFTER_S)
    able = {kind for kind in able if kinds[kind].offers(needs)} or able
    return serving if len(able) == len(kinds) else [e for e in serving if e.kind in able]


def _lacking(kinds: list[EngineState], needs: Needs) -> str:
    """By the engine that lacks least."""
    least = min((list(engine.lacks(needs)) for engine in kinds), key=len)
    return (
        f"No engine that serves `{needs.base_model}` can take this now: it needs "
        f"{' and '.join(least)}."
    )
