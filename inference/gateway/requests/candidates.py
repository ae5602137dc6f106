"""The engines that may get a request now; cached between decisions.

Each decision needs to know which engines are connected and not draining, which read what they are
sent, and which are not silent. All of that changes rarely, so the answers are cached and computed
anew only when they may have changed: when a link says so, and when the next engine could have
become silent.

Overflow engines (`routing.overflow`) and prefill engines (`routing.prefill`) are apart: only
`choose_overflow` and `choose_prefill` return one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from contextlib import suppress

from inference.errors import InvalidRequest, NoEngine, Overloaded
from inference.gateway.fleet.engine_link import EngineLink
from inference.gateway.routing.choice import choose
from inference.gateway.routing.engine_state import EngineState, Needs
from inference.gateway.routing.engines import Able, Engines
from inference.link.engine_info import PREFILL
from inference.pools import Revisions

MayTake = Callable[[EngineLink], bool]


class Candidates:
    """The candidates of one gateway."""

    def __init__(self, links: Mapping[str, EngineLink]) -> None:
        """`links` has the links that may get work, by engine; its owner calls `changed` after each
        change."""
        self._links = links
        self._there = self._reading = self._speaking = Engines(())
        """All engines; those not behind with reading; those of them not silent."""
        self._overflow: list[EngineLink] = []
        self._prefill: list[EngineLink] = []
        self._behind: list[EngineLink] = []
        self._silent: list[EngineLink] = []
        self._next_silent_at = -math.inf
        """Earliest time at which another engine can become silent."""

    def changed(self) -> None:
        """A link came or went, or its engine began to drain or is behind with reading."""
        self._next_silent_at = -math.inf

    def choose(self, needs: Needs, may_take: MayTake | None = None, *, now: float) -> EngineLink:
        """The link of the engine that should get a request, among those for which `may_take` holds;
        a silent engine only if no other can take it. `now` is a monotonic time.

        Raises:
            NoEngine, Overloaded: no engine can take it.
        """
        self._refresh(now)
        revisions = self._there.revisions(needs)
        try:
            if self._silent:
                with suppress(NoEngine):
                    return self._chosen(self._speaking, needs, revisions, may_take)
            return self._chosen(self._reading, needs, revisions, may_take)
        except NoEngine:
            if any(revisions is None or link.engine.pool in revisions for link in self._behind):
                raise Overloaded(
                    "The engines are not reading new requests fast enough.", retry_after_s=1
                ) from None
            raise

    def choose_overflow(
        self, needs: Needs, may_take: MayTake, *, within_s: float, now: float
    ) -> EngineLink | None:
        """As `choose`, of the overflow engines that have all that the request asks for and on which
        it would wait no longer than `within_s`; None if there is none."""
        self._refresh(now)
        return self._chosen_apart(self._overflow, needs, may_take, within_s=within_s, now=now)

    def choose_prefill(
        self, needs: Needs, may_take: MayTake, *, within_s: float, now: float
    ) -> EngineLink | None:
        """As `choose_overflow`, of the prefill engines."""
        self._refresh(now)
        return self._chosen_apart(self._prefill, needs, may_take, within_s=within_s, now=now)

    def _chosen_apart(
        self,
        links: list[EngineLink],
        needs: Needs,
        may_take: MayTake,
        *,
        within_s: float,
        now: float,
    ) -> EngineLink | None:
        able = Able(
            link.engine
            for link in links
            if link.engine.info.name == needs.base_model
            and not (link.engine.draining or link.full or link.is_silent(now))
            and link.engine.stats.wait_s <= within_s
            and link.engine.offers(needs)
            and not any(link.engine.lacks(needs))
            and may_take(link)
        )
        return self._links[choose(able, needs).id] if able else None

    def all_busy(
        self, needs: Needs, wait_s: float, avoided: Set[EngineState], *, now: float
    ) -> bool:
        """Whether there are own engines that can take the request, but each is to be avoided, or
        expects it to wait longer than `wait_s`."""
        self._refresh(now)
        try:
            able = self._reading.able(needs, self._there.revisions(needs))
        except NoEngine:
            return False
        return all(engine.stats.wait_s > wait_s or engine in avoided for engine in able)

    def have_overflow(self, base_model: str) -> bool:
        """Whether an overflow engine of this base model is connected."""
        engines = (link.engine for link in self._links.values())
        return any(one.info.overflow and one.info.name == base_model for one in engines)

    def permanent_refusal(self, needs: Needs) -> InvalidRequest | None:
        """Why no engine will ever run the request; None if one may (`Engines`)."""
        return self._there.permanent_refusal(needs)

    def _chosen(
        self,
        engines: Engines,
        needs: Needs,
        revisions: Revisions | None,
        may_take: MayTake | None,
    ) -> EngineLink:
        links = self._links
        if may_take is not None:
            engines = Engines(engine for engine in engines if may_take(links[engine.id]))
        return links[choose(engines.able(needs, revisions), needs).id]

    def _refresh(self, now: float) -> None:
        if self._may_have_changed(now):
            self._rebuild(now)

    def _may_have_changed(self, now: float) -> bool:
        return bool(
            now >= self._next_silent_at
            or (self._silent and any(not link.is_silent(now) for link in self._silent))
            or (self._behind and any(not link.full for link in self._behind))
        )

    def _rebuild(self, now: float) -> None:
        self._overflow = [link for link in self._links.values() if link.engine.info.overflow]
        self._prefill = [one for one in self._links.values() if one.engine.info.role == PREFILL]
        links = [link for link in self._links.values() if link.engine.info.serves]
        self._behind = [link for link in links if link.full]
        self._silent = [link for link in links if link.is_silent(now)]
        ready = [link for link in links if not link.full]
        self._there = Engines(link.engine for link in links)
        self._reading = Engines(link.engine for link in ready)
        self._speaking = Engines(link.engine for link in ready if not link.is_silent(now))
        silent_at = (link.silent_at for link in links if not link.is_silent(now))
        self._next_silent_at = min(silent_at, default=math.inf)
