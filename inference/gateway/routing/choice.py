"""Which engine gets a request. No sockets, no loop: engines and their states in, a choice out.

Among those that can do it (`engines`), the cheapest gets it, in tokens to compute before its first
one comes:

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

import math
import random
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from inference.gateway.routing.engine_state import LOAD_TOKENS, EngineState, Needs
from inference.gateway.routing.engines import Able
from inference.link.wire import AdapterRef

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

_random = random.Random()


def choose(able: Able, needs: Needs, rng: random.Random | None = None) -> EngineState:
    """The engine that should get a request, of those that can do it, which are one at least.

    Looks closely at a few engines only: those that hold something of it, and where these cost more
    than a cold one could, at a few others.
    """
    return able[0] if len(able) == 1 else cheapest(able, needs, rng or _random)


def cheapest(able: Able, needs: Needs, rng: random.Random) -> EngineState:
    """Of at least two that can do it."""
    prices = _Prices(able, needs)
    holders = _holders(able, needs.adapter, prices.hashes, rng)
    offers = prices.of(holders)
    homes = [engine for engine in _homes(able, needs, rng) if engine not in holders]
    offers += prices.of(homes, loads=False)
    cold = needs.prompt_tokens + (0 if needs.adapter is None else LOAD_TOKENS)
    least = min(offers, key=_COST).cost if offers else math.inf
    if least <= cold:
        return _best(offers, least, rng)
    home = needs.home
    strangers = prices.of(_strangers(able, home, rng))
    least_cold = min(strangers, key=_COST).cost
    if least <= least_cold:
        return _best(offers, least, rng)
    if home is None:
        return _best(strangers, least_cold, rng)
    return next(one.engine for one in strangers if one.cost <= least_cold + HOME_TOKENS)


class _Offer(msgspec.Struct):
    """What it costs to give a request to an engine."""

    cost: float
    load: int
    engine: EngineState


_COST, _LOAD = attrgetter("cost"), attrgetter("load")


class _Prices:
    """What one request costs on one engine or another."""

    __slots__ = ("_ends", "_level", "_needs", "hashes")

    def __init__(self, able: Able, needs: Needs) -> None:
        mean = sum([engine.load for engine in able]) / len(able)
        self._needs, self._level = needs, max(IDLE_TOKENS, mean)
        self.hashes, self._ends = needs.prefix.marks() if needs.prefix else ((), ())

    def of(self, engines: list[EngineState], *, loads: bool = True) -> list[_Offer]:
        """On each of these; without `loads` its adapter costs nothing."""
        needs, hashes, ends, level = self._needs, self.hashes, self._ends, self._level
        prompt_tokens, most = needs.prompt_tokens, EVEN * level
        adapter = needs.adapter if loads else None
        offers: list[_Offer] = []
        for engine in engines:
            load = engine.load
            cost = prompt_tokens + engine.queue + LEVEL * (max(load, IDLE_TOKENS) - level)
            if load > most:
                cost += load - most
            if (beyond := load + prompt_tokens - engine.info.kv_tokens) > 0:
                cost += beyond
            if held := engine.warmth.longest(hashes):
                cost -= prompt_tokens * ends[held - 1] // ends[-1]
            if adapter is not None:
                cost += engine.adapter_cost(adapter.name)
            offers.append(_Offer(cost, load, engine))
        return offers


def _holders(
    able: Able, adapter: AdapterRef | None, hashes: Sequence[int], rng: random.Random
) -> list[EngineState]:
    """Those that hold its adapter or a beginning of its prompt; where they are many, those that
    hold more of it, or some of them."""
    holders: list[EngineState] = []
    if hashes:
        first = hashes[0]
        holders = [engine for engine in able if first in engine.warmth.known]
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


def _homes(able: Able, needs: Needs, rng: random.Random) -> list[EngineState]:
    """Some of those on which its adapter should be whatever its load costs; none of most."""
    count = round(ROOMY * needs.share * len(able))
    if count < 2 or (home := needs.home) is None:
        return []
    homes = able.nearest(home, count)
    return rng.sample(homes, min(HOMES_AT_ONCE, len(homes)))


def _strangers(able: Able, home: int | None, rng: random.Random) -> list[EngineState]:
    """A few to choose from where nobody holds anything: home and those that would be next, in their
    order, and two by chance."""
    one, step = int(rng.random() * len(able)), int(rng.random() * (len(able) - 1))
    two = [able[one], able[(one + 1 + step) % len(able)]]
    if home is None:
        return two
    return [*able.nearest(home, NEAREST), *two]


def _best(offers: list[_Offer], least: float, rng: random.Random) -> EngineState:
    """The one that costs least; of several like it, the less loaded of two by chance."""
    tied = [one for one in offers if one.cost <= least + TIE_TOKENS]
    if len(tied) > 2:
        tied = rng.sample(tied, 2)
    return min(tied, key=_LOAD).engine
