"""Which engine gets a request. No sockets, no event loop: engine states in, a choice out.

Of the engines that can run the request (`engines`), the cheapest gets it. The cost is in tokens to
compute before the first output token:

- the prompts that wait there already, and the part of its own prompt that the engine does not hold
  in its cache (`warmth`);
- the wait for its adapter, if that is not loaded or no slot is free;
- the engine's load above the average, and what does not fit in its cache. So a warm engine attracts
  requests until the imbalance costs more than the cache saves, and a hot adapter or prompt is
  loaded on further engines only then.

For a request of which no engine holds anything, the choice would be random and differ between
gateways. So such a request goes home: to the engine that ranks first for its tenant and adapter,
which is the same for all gateways, unless that is much more expensive. If an adapter's share of the
traffic would fill a good part of an engine, or several (`popularity`), it has that many homes, on
which its load costs nothing: it gets there before its first engine is full.

Among equally cheap engines the less loaded of two random ones is chosen, and of many that hold
something only a few random ones are considered. The reason is that figures are as old as an
engine's last report and other gateways choose by the same ones: the single best engine would get
everything until its next report. For the same reason what a gateway dispatches counts at once, as
warm, loaded and waiting.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from operator import attrgetter

import msgspec

from inference.gateway.routing.engine_state import LOAD_TOKENS, EngineState, Needs
from inference.gateway.routing.engines import Able
from inference.link.engine_info import AdapterRef

LEVEL = 0.1
"""Cost of each token of an engine's load above the average. Small, so that it decides where
conversations begin but does not move them."""
EVEN = 1.4
"""Load, as a multiple of the average, above which each further token costs a whole token."""
IDLE_TOKENS = 4096
"""Engines with less load count as equally idle: small differences are no reason to move."""
TIE_TOKENS = 64
HOME_TOKENS = 1024
"""How much more a request's home may cost than the cheapest engine."""
NEAREST = 4
"""Engines considered from home on, for a request of which no engine holds anything."""
ROOMY = 5
"""Homes per engine that an adapter's traffic could fill. With fewer, other adapters and prompts
there are pushed out; with more, adapter loads and cache hits suffer."""
HOMES_AT_ONCE = 2
"""Homes considered per request, chosen at random: otherwise all gateways would choose the same one
until its next report."""
MAX_HOLDERS = 4
"""Engines considered among those that hold the prompt's beginning, or the adapter. With more,
gateways would meet on the same ones."""

_random = random.Random()


def choose(able: Able, needs: Needs, rng: random.Random | None = None) -> EngineState:
    """The engine that should get a request, of those that can run it, at least one.

    Prices only a few engines: those that hold something of it and, if these cost more than a cold
    one could, a few others.
    """
    return able[0] if len(able) == 1 else cheapest(able, needs, rng or _random)


def cheapest(able: Able, needs: Needs, rng: random.Random) -> EngineState:
    """The cheapest engine of at least two that can run the request."""
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
    """The cost of giving a request to an engine."""

    cost: float
    load: int
    engine: EngineState


_COST, _LOAD = attrgetter("cost"), attrgetter("load")


class _Prices:
    """Computes the cost of one request on each engine."""

    __slots__ = ("_ends", "_level", "_needs", "hashes")

    def __init__(self, able: Able, needs: Needs) -> None:
        mean = sum([engine.load for engine in able]) / len(able)
        self._needs, self._level = needs, max(IDLE_TOKENS, mean)
        self.hashes, self._ends = needs.prefix.marks() if needs.prefix else ((), ())

    def of(self, engines: list[EngineState], *, loads: bool = True) -> list[_Offer]:
        """An offer for each of these engines; without `loads` loading the adapter costs nothing."""
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
    """The engines that hold the adapter or a beginning of the prompt; if there are many, those that
    hold more of the prompt, or a random sample."""
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
    """Some of the engines on which its adapter belongs whatever its load costs; for most adapters
    there are none."""
    count = round(ROOMY * needs.share * len(able))
    if count < 2 or (home := needs.home) is None:
        return []
    homes = able.nearest(home, count)
    return rng.sample(homes, min(HOMES_AT_ONCE, len(homes)))


def _strangers(able: Able, home: int | None, rng: random.Random) -> list[EngineState]:
    """A few engines to choose from if no holder is good enough: home and the next in its order,
    then two random ones."""
    one, step = int(rng.random() * len(able)), int(rng.random() * (len(able) - 1))
    two = [able[one], able[(one + 1 + step) % len(able)]]
    if home is None:
        return two
    return [*able.nearest(home, NEAREST), *two]


def _best(offers: list[_Offer], least: float, rng: random.Random) -> EngineState:
    """The cheapest engine; of several within TIE_TOKENS, the less loaded of two random ones."""
    tied = [one for one in offers if one.cost <= least + TIE_TOKENS]
    if len(tied) > 2:
        tied = rng.sample(tied, 2)
    return min(tied, key=_LOAD).engine
