"""A simulated gateway: the product's routing and holding, and its own view of every engine."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

from inference.errors import NoEngine
from inference.gateway.requests.held import Held, Holding, Request
from inference.gateway.requests.placing import TAKEN_UP
from inference.gateway.routing.engine_state import EngineState, Needs
from inference.gateway.routing.engines import Able, Engines
from inference.gateway.routing.popularity import Popularity
from inference.link.wire import PROTOCOL_VERSION, EngineStats, ModelInfo, Stats, Submit
from tests.bench.simulation.engine import PLACES, Job

Router = Callable[[Able, Needs, random.Random], EngineState]
"""As `routing.choice.choose`."""

HOLDING = Holding(30.0)
"""As settings have it by default."""
TIMED = 16
"""Of so many decisions one is timed: the clock takes as long as they do."""
CHARACTERS = 4
"""Of a body, for each token."""


class Gateway:
    """`place` says which engine gets a job, or holds it; `take_up` gives out what it holds."""

    def __init__(self, rng: random.Random, router: Router) -> None:
        self.views: dict[str, EngineState] = {}
        self._engines: Engines | None = None
        """Of `views`; None where they have changed."""
        self.decision_s: list[float] = []
        """CPU time of each that is timed, since somebody emptied it."""
        self._decisions = itertools.count()
        self._rng, self._router = rng, router
        self._popularity = Popularity()
        self._held = Held(HOLDING)
        self._jobs: dict[str, Job] = {}
        """Those that are held."""
        self._unbegun: Counter[str] = Counter()
        """By engine."""

    def join(self, id: str, info: ModelInfo, *, tells: bool) -> None:
        """An engine comes."""
        self.views[id] = EngineState(
            id,
            info,
            EngineStats(spare=PLACES),
            version=PROTOCOL_VERSION,
            warm=b"" if tells else None,
        )
        self._engines = None

    def leave(self, id: str) -> None:
        """An engine is lost."""
        del self.views[id]
        self._engines = None
        self._unbegun.pop(id, None)

    def hear(self, id: str, stats: Stats) -> None:
        """An engine said how it is."""
        if (view := self.views.get(id)) is not None:
            view.note(stats)

    @property
    def held(self) -> int:
        """How many jobs."""
        return len(self._held)

    def place(self, job: Job, now: float) -> EngineState | None:
        """The engine that gets it; None: it is held.

        Raises:
            NoEngine: as many are held as may.
        """
        if self.views and not self._held:
            self._engines = self._engines or Engines(self.views.values())
            return self._send(job, self._engines)
        turn = job.turn
        tokens, size = job.prompt_tokens + turn.output_tokens, CHARACTERS * job.prompt_tokens
        self._held.add(
            Request(job.id, turn.tenant, "base", "base", size, tokens, lane=turn.lane), now
        )
        self._jobs[job.id] = job
        return None

    def give_up(self, job: Job) -> bool:
        """It is not held any longer; False: it was not."""
        return self._jobs.pop(job.id, None) is not None and self._held.withdraw(job.id)

    def take_up(self, now: float) -> Iterator[tuple[Job, EngineState]]:
        """Who gets an engine now, in fair order, as far as engines take what was held."""
        while (request := self._held.first("base", set(), now)) is not None:
            able = [view for id, view in self.views.items() if self._unbegun[id] < TAKEN_UP]
            if not able:
                return
            self._held.start(request.id)
            job = self._jobs.pop(request.id)
            yield job, self._send(job, Engines(able))

    def began(self, job: Job, view: EngineState) -> bool:
        """Its first token came; True: the engine takes more of what is held now."""
        view.began((job.id, 1))
        self._unbegun[view.id] -= 1
        return bool(self._held) and self._unbegun[view.id] == TAKEN_UP // 2

    def _send(self, job: Job, engines: Engines) -> EngineState:
        turn = job.turn
        needs = Needs("base", turn.adapter, tenant=turn.tenant, prompt_tokens=job.prompt_tokens,
                      prefix=job.prefix)  # fmt: skip
        timed = next(self._decisions) % TIMED == 0
        began = time.thread_time() if timed else 0.0
        view = self._router(engines.able(needs), self._popularity.weighed(needs), self._rng)
        if timed:
            self.decision_s.append(time.thread_time() - began)
        self._popularity.note(needs)
        view.took(
            Submit(job.id, "chat", b"", "m", turn.tenant, "salt", turn.adapter, choices=1,
                   prompt_tokens=job.prompt_tokens, wanted_tokens=turn.output_tokens,
                   prefix=job.prefix)
        )  # fmt: skip
        self._unbegun[view.id] += 1
        return view


def retry_after_s(refusal: NoEngine) -> float:
    """When a client comes again."""
    return refusal.retry_after_s or HOLDING.retry_after_s
