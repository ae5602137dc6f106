"""The cost of a gateway's routing decision, from a request to the link of its engine.

The engines' states are taken from a simulated fleet of the same size under load: caches are full,
all places hold adapters, and prompts wait. The links are real, but have no sockets. The requests
are those of the simulation's clients.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from structlog.testing import capture_logs

from inference.gateway.fleet.engine_link import EngineLink
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.placing import Placing
from inference.interfaces.directory import ResolvedTarget
from inference.interfaces.limiter import Reservation
from inference.link import workload
from inference.pools import Pool
from tests.inference.played import benched
from tests.inference.samples import GRANT
from tests.labs.bench.machinery.report import Figure, Report, Row, take_turns
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.routing import ADAPTERS, DECISION_US, SESSIONS, TENANTS
from tests.labs.bench.simulation.engine import MODEL, Job
from tests.labs.bench.simulation.fleet import Fleet, endless
from tests.labs.bench.simulation.gateway import Gateway
from tests.labs.bench.simulation.traces import Turn, Workload

WARM_S = 20
REQUESTS = 512
SERVING = frozenset([MODEL.pool_digest()])


def comes(placing: Placing, order: AdmittedRequest) -> EngineLink:
    """Decide as for a new request."""
    return placing.decide(placing._needs(order))


def was_held(placing: Placing, order: AdmittedRequest) -> EngineLink:
    """Decide as for a request that was held or moves: only engines that may take it count."""
    return placing.decide(placing._needs(order), lambda link: link.unbegun == 0)


WAYS: dict[str, Callable[[Placing, AdmittedRequest], EngineLink]] = {
    "a request that comes": comes,
    "one that was held": was_held,
}


async def run(scale: Scale) -> Report:
    """Measure the CPU time of a decision in fleets of several sizes."""
    rows: list[Row] = []
    for engines in scale.deciding:
        for what, us in (await _decided(engines, scale.rounds)).items():
            target = DECISION_US if engines == 64 and what == "a request that comes" else None
            rows.append(Row(f"{engines} engines: {what}", Figure.of(us), "us", at_most=target))
    return Report("CPU of a decision", rows, f"The mean of {REQUESTS} requests in each round.")


async def _decided(engines: int, rounds: int) -> dict[str, list[float]]:
    """Mean CPU microseconds of a decision in each round."""
    work = Workload(TENANTS * engines, ADAPTERS * engines)
    fleet = Fleet(engines, 1)
    fleet.keep([endless(work.session) for _ in range(SESSIONS * engines)], spread_s=WARM_S / 3)
    fleet.run(WARM_S)
    orders = [_order(turn) for turn in _turns(work)]
    with capture_logs():
        async with benched() as bench:
            (gateway,) = fleet.gateways
            for id in gateway.views:
                await bench.join(id, model=MODEL)
            bench.hub.set_pools({"base": Pool(SERVING)})
            placing = bench.hub._requests._placing
            for id, link in bench.hub._links.items():
                _be(link, id, gateway)
            bench.hub._candidates.changed()
            turns = {what: partial(_timed, placing, orders, way) for what, way in WAYS.items()}
            await take_turns(1, turns)
            return await take_turns(rounds, turns)


def _be(link: EngineLink, id: str, gateway: Gateway) -> None:
    """Make `link` this gateway's link of the engine `id`, and never let it count as silent."""
    link.engine = gateway.views[id]
    link._session.received_at = math.inf


def _turns(work: Workload) -> list[Turn]:
    """One of the first four turns of each of REQUESTS sessions."""
    sessions = [list(itertools.islice(work.session(), 4)) for _ in range(REQUESTS)]
    return [turns[at % len(turns)] for at, turns in enumerate(sessions)]


def _order(turn: Turn) -> AdmittedRequest:
    job = Job("r", turn, lambda now: None, 0.0, counted=False)
    return AdmittedRequest(
        grant=replace(GRANT, tenant=turn.tenant),
        target=ResolvedTarget("base", "base", turn.adapter, tried=SERVING, ready=SERVING),
        reservation=Reservation("r", None),
        kind="chat",
        body=b"{}",
        lane=turn.lane,
        timeout_s=60,
        workload=workload.Workload(prompt_tokens=job.prompt_tokens),
        prefix=job.prefix,
    )


async def _timed(
    placing: Placing,
    orders: list[AdmittedRequest],
    decide: Callable[[Placing, AdmittedRequest], EngineLink],
) -> float:
    gc.collect()
    gc.disable()
    began = time.thread_time()
    for order in orders:
        decide(placing, order)
    took_s = time.thread_time() - began
    gc.enable()
    return 1e6 * took_s / len(orders)
