"""A simulated gateway: the product's routing and holding, and its own view of every engine."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

from inference.errors import NoEngine
from inference.gateway.requests.held import HeldRequest, HeldRequests, Holding
from inference.gateway.requests.placing import TAKEN_UP
from inference.gateway.routing.engine_state import EngineState, Needs
from inference.gateway.routing.engines import Able, Engines
from inference.gateway.routing.popularity import Popularity
from inference.link.engine_info import EngineStats, ModelInfo
from inference.link.wire import Stats, Submit
from inference.link.workload import Workload
from tests.labs.bench.simulation.engine import PLACES, Job

Router = Callable[[Able, Needs, random.Random], EngineState]
"""A routing policy with the signature of `routing.choice.choose`."""

HOLDING = Holding(30.0)
"""The settings' default."""
TIMED = 16
"""One in this many decisions is timed, because reading the clock takes as long as a decision."""
CHARACTERS = 4
"""Body characters per token."""


class Gateway:
    """`place` chooses a job's engine or holds the job; `take_up` dispatches held jobs."""

    def __init__(self, rng: random.Random, router: Router) -> None:
        self.views: dict[str, EngineState] = {}
        self._engines: Engines | None = None
        """The engines of `views`; None after they changed."""
        self.decision_s: list[float] = []
        """CPU time of each timed decision since the list was last cleared."""
        self._decisions = itertools.count()
        self._rng, self._router = rng, router
        self._popularity = Popularity()
        self._held = HeldRequests(HOLDING)
        self._jobs: dict[str, Job] = {}
        """Held jobs by id."""
        self._unbegun: Counter[str] = Counter()
        """Requests without a first token, by engine."""

    def join(self, id: str, info: ModelInfo, *, tells: bool) -> None:
        """An engine connected."""
        self.views[id] = EngineState(
            id,
            info,
            EngineStats(spare=PLACES),
            warm=b"" if tells else None,
        )
        self._engines = None

    def leave(self, id: str) -> None:
        """An engine is lost."""
        del self.views[id]
        self._engines = None
        self._unbegun.pop(id, None)

    def hear(self, id: str, stats: Stats) -> None:
        """Apply an engine's report; ignored if the engine has left."""
        if (view := self.views.get(id)) is not None:
            view.note(stats)

    @property
    def held(self) -> int:
        """Number of held jobs."""
        return len(self._held)

    def place(self, job: Job) -> EngineState | None:
        """The engine chosen for a job; None if the job is held.

        Raises:
            NoEngine: the hold queue is full.
        """
        if self.views and not self._held:
            self._engines = self._engines or Engines(self.views.values())
            return self._send(job, self._engines)
        turn = job.turn
        size = CHARACTERS * job.prompt_tokens
        self._held.add(HeldRequest(job.id, turn.tenant, "base", "base", size, lane=turn.lane))
        self._jobs[job.id] = job
        return None

    def give_up(self, job: Job) -> bool:
        """Stop holding a job; returns False if it was not held."""
        return self._jobs.pop(job.id, None) is not None and self._held.remove(job.id)

    def take_up(self) -> Iterator[tuple[Job, EngineState]]:
        """Held jobs and their engines, in order, while engines can take held jobs."""
        for id in self._held.in_order():
            able = [view for one, view in self.views.items() if self._unbegun[one] < TAKEN_UP]
            if not able:
                return
            self._held.remove(id)
            job = self._jobs.pop(id)
            yield job, self._send(job, Engines(able))

    def began(self, job: Job, view: EngineState) -> bool:
        """A job's first token arrived; returns whether the engine can now take more held jobs."""
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
        view.sent(
            Submit(job.id, "chat", b"", "m", turn.tenant, "salt", turn.adapter,
                   workload=Workload(
                       prompt_tokens=job.prompt_tokens, max_tokens=turn.output_tokens),
                   prefix=job.prefix)
        )  # fmt: skip
        self._unbegun[view.id] += 1
        return view


def retry_after_s(refusal: NoEngine) -> float:
    """Seconds after which a client retries."""
    return refusal.retry_after_s or HOLDING.retry_after_s
