"""One run: seed, storm, calm, and the collection of what all sides report."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import django
import httpx
import psycopg
from rich.console import Console

django.setup()

from django.core.management import call_command  # noqa: E402

from gateway.local import seed  # noqa: E402
from inference.errors import Unavailable  # noqa: E402
from tests.labs.chaos.clients import background, customers, tuning  # noqa: E402
from tests.labs.chaos.clients.background import InBackground  # noqa: E402
from tests.labs.chaos.clients.batches import ENDED, Batches  # noqa: E402
from tests.labs.chaos.clients.crowd import TIMEOUT_S, Crowd  # noqa: E402
from tests.labs.chaos.clients.customers import Customer  # noqa: E402
from tests.labs.chaos.clients.tuning import Tunings, epoch_tokens  # noqa: E402
from tests.labs.chaos.counters import Counters, billed  # noqa: E402
from tests.labs.chaos.judging import report  # noqa: E402
from tests.labs.chaos.judging.facts import (  # noqa: E402
    PREFIX_DIGITS,
    BudgetState,
    Counts,
    Facts,
    Received,
    Seen,
    Twin,
    Unseen,
)
from tests.labs.chaos.judging.sources import journals, ledger, logs  # noqa: E402
from tests.labs.chaos.judging.sources.answers import receive  # noqa: E402
from tests.labs.chaos.judging.sources.recorder import Record  # noqa: E402
from tests.labs.chaos.judging.verdict import judge  # noqa: E402
from tests.labs.chaos.plan import (  # noqa: E402
    CONSOLE,
    ENGINES,
    GATEWAYS,
    GATEWAYS_ALONE,
    STORMS,
    TRAINER,
    WORKERS,
    Strike,
    plan,
    without_trainer,
)
from tests.labs.chaos.processes import Failed  # noqa: E402
from tests.labs.chaos.stage import (  # noqa: E402
    DRAIN_S,
    READY_S,
    SHORT_DRAIN_S,
    WITHOUT_REDIS,
    Folders,
    Stage,
    batches,
    database,
    installation,
)

CLIENTS_EACH = {"synthetic": 4, "vllm": 2}
"""Per tenant: a load that two cores can carry while processes start."""
SETTLE_S = 180.0
"""Seconds to wait, once nothing dies, until everything is in the ledger and all leases have
expired."""
TUNED_S = 400.0
"""Seconds to wait for the next fine-tuning job to end, once nothing dies."""
WARM_UP_S = 3.0
UNSEEN = {
    "synthetic": Unseen(streamed=4, whole=6),
    "vllm": Unseen(streamed=4, whole=40),
}
"""A step of a stream is journaled before the event loop turns four times; on a busy machine, where
a turn may take longer than a step, each turn may have one. Progress of answers that do not stream
is journaled ten times a second (`inference.agent.agent.TICK_S`): at 30 tokens a second these are at
most four steps, plus one or two under way. A tiny model on vLLM takes a few ms a step."""
SHOW_EVERY_S = 15.0
MAX_TWINS, TWINS_AT_ONCE = 60, 6
"""Answers that are requested once more, in all and at once; fewer at once than the tenants'
limits."""


class Run:
    """One run and its facts."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        engine: str,
        folders: Folders,
        console: Console,
        *,
        only_gateways: bool = False,
        trains: bool = True,
    ) -> None:
        """`only_gateways`: only gateways die, with short drains. `trains`: there is a trainer."""
        self.seed, self.seconds, self.engine = seed, seconds, engine
        drain_s = SHORT_DRAIN_S if only_gateways else DRAIN_S
        self.stage = Stage(folders, gateways_drain_s=drain_s, trains=trains)
        self.console = console
        storm = GATEWAYS_ALONE if only_gateways else STORMS[engine]
        self.customers: list[Customer] = []
        self.facts = Facts(
            planned=plan(seed, seconds, storm if trains else without_trainer(storm)),
            only_gateways=only_gateways,
            budgets=customers.BUDGETS,
            unseen=UNSEEN[engine],
        )

    async def run(self) -> bool:
        """Do all of it; returns whether every check passed.

        Raises:
            Failed: it could not be carried out.
        """
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(database(self.stage))
            await asyncio.to_thread(self._seed)
            await stack.enter_async_context(installation(self.stage, self.engine))
            await asyncio.to_thread(customers.let_adapters_run, self.engine, READY_S)
            await stack.enter_async_context(batches(self.stage))
            await self._storm()
            await self._calm()
            await self._stop()
        await asyncio.to_thread(self._read_files)
        checks = judge(self.facts)
        report.show(self.console, checks, self.facts, self.seconds)
        self.console.print(f"seed {self.seed}, {time.monotonic() - began:.0f} s in all")
        return not any(check.faults for check in checks)

    def _seed(self) -> None:
        call_command("migrate", verbosity=0)
        self.stage.credentials = seed.engines({}, ENGINES)
        self.customers = customers.seed(self.seconds)
        self.facts.prices = customers.prices(self.customers)
        self.facts.requests_per_minute = customers.requests_per_minute(self.customers)

    # --- the storm -------------------------------------------------------------------------------

    async def _storm(self) -> None:
        stage = self.stage
        crowd = Crowd(
            self.customers,
            stage.urls,
            is_ready=stage.takes_requests,
            four_letters=self.engine == "synthetic",
        )
        self.facts.received = crowd.received
        sending = asyncio.create_task(crowd.run(self.seed, CLIENTS_EACH[self.engine]))
        self._batches = Batches(self.customers, stage.urls, stage.takes_requests)
        self._batching = asyncio.create_task(self._batches.run(self.seed))
        self._in_background = InBackground(self.customers, stage.urls, stage.takes_requests)
        self._waiting = asyncio.create_task(self._in_background.run(self.seed))
        self._tunings = Tunings(self.customers, stage.urls, stage.takes_requests)
        self._tuning = asyncio.create_task(self._tunings.run(self.seed)) if stage.trains else None
        showing = asyncio.create_task(self._show(crowd))
        try:
            await asyncio.sleep(WARM_UP_S)
            await self._strike(self.facts.planned)
            await _until(crowd.all_served)  # returns at once, unless the machine was very busy
            crowd.over.set()
            await asyncio.wait_for(sending, READY_S + 3 * TIMEOUT_S)  # some wait for a gateway
        finally:
            sending.cancel()
            showing.cancel()
            await asyncio.wait((sending, showing))

    async def _strike(self, strikes: list[Strike]) -> None:
        luck, began = random.Random(self.seed), time.monotonic()
        for strike in strikes:
            await asyncio.sleep(max(0.0, began + strike.at_s - time.monotonic()))
            if self.facts.only_gateways:
                await _until(self._all_serve)
            self.stage.strike(strike, luck)
        await asyncio.sleep(max(0.0, began + self.seconds - time.monotonic()))
        await _until(partial(self._none_is_spared, luck))

    async def _none_is_spared(self, luck: random.Random) -> bool:
        """Whether each kind was struck. Strikes that hit nothing, because processes start slowly on
        a busy machine, are repeated now if their victim runs."""
        hit = {kill.kind for kill in self.stage.kills}
        spared = {one.kind: one for one in self.facts.planned if one.kind not in hit}
        if self.facts.only_gateways and not await self._all_serve():
            return not spared
        for strike in spared.values():
            self.stage.strike(strike, luck)
        return not spared

    async def _all_serve(self) -> bool:
        """If only gateways die, the two must not be away at the same time."""
        return all(self.stage.takes_requests(name) for name in GATEWAYS)

    async def _show(self, crowd: Crowd) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(SHOW_EVERY_S)
            self.console.print(
                f"{time.monotonic() - began:4.0f} s: {len(self.stage.kills)} kills, "
                f"{len(crowd.received):,} requests, "
                f"{sum(one.complete for one in crowd.received):,} of them answered",
                style="dim",
            )

    # --- the calm after it -----------------------------------------------------------------------

    async def _calm(self) -> None:
        """Nothing is killed any more: wait for the last entry and the last lease, then collect the
        facts."""
        stage, facts = self.stage, self.facts
        await stage.until_ready()
        facts.kills = list(stage.kills)
        for gateway in GATEWAYS:
            facts.moved += logs.moved(stage.folders.log(gateway))
            facts.adopted += logs.adopted(stage.folders.log(gateway))
            facts.stayed |= set(logs.stayed(stage.folders.log(gateway)))
        await self._batches_end()
        await self._responses_end()
        await self._tunings_end()
        await self._ask_again()
        await self._settled()
        async with Counters.connected() as counters:
            await _until(counters.idle)
            facts.leftovers = await counters.leftovers()
            facts.compared = await self._compared(counters)
            stage.strike(Strike(0.0, "redis", "redis"), random.Random())
            await stage.until_ready()
            facts.reseeded = await self._compared(counters)
        await _until(self._engines_idle)
        facts.events = await asyncio.to_thread(ledger.events)
        facts.trainings = await asyncio.to_thread(ledger.trainings)
        facts.superseded = await asyncio.to_thread(ledger.superseded)
        facts.rollups = await asyncio.to_thread(ledger.sums, "hour")
        facts.months = await asyncio.to_thread(ledger.sums, "month")

    async def _batches_end(self) -> None:
        """Wait for the batches that clients know of, and for those that no client learnt of."""
        self._batches.over.set()
        await asyncio.wait((self._batching,), timeout=SETTLE_S)
        if self._batching.done():
            self._batching.result()
        self._batching.cancel()
        self.facts.batches = self._batches.got

        async def all_ended() -> bool:
            found = await asyncio.to_thread(ledger.batches)
            self.facts.prefixes = set(found)
            return all(status in ENDED for status in found.values())

        await _until(all_ended)

    async def _responses_end(self) -> None:
        """Wait for the responses in the background."""
        self._in_background.over.set()
        await asyncio.wait((self._waiting,), timeout=SETTLE_S)
        if self._waiting.done():
            self._waiting.result()
        self._waiting.cancel()
        self.facts.responses = self._in_background.got

        async def all_ended() -> bool:
            found = await asyncio.to_thread(ledger.in_background)
            self.facts.in_background = set(found)
            return all(status in background.ENDED for status in found.values())

        await _until(all_ended)
        self.facts.prefixes |= {id[:PREFIX_DIGITS] for id in self.facts.in_background}

    async def _tunings_end(self) -> None:
        """Wait for the fine-tuning jobs. One whose trainer was killed goes on once that is noticed,
        which takes up to 90 s."""
        if self._tuning is None:
            return
        self._tunings.over.set()
        ended, before = 0, -1
        while ended > before and not self._tuning.done():
            await asyncio.wait((self._tuning,), timeout=TUNED_S)
            before, ended = ended, sum(bool(one.status) for one in self._tunings.got)
        if self._tuning.done():
            self._tuning.result()
        self._tuning.cancel()
        facts = self.facts
        facts.tunings, facts.training_price = self._tunings.got, customers.TRAINING_PRICE
        facts.epoch_tokens = await asyncio.to_thread(epoch_tokens)

        async def all_ended() -> bool:
            facts.tuning_rows = await asyncio.to_thread(ledger.tunings)
            return all(row.status in tuning.ENDED for row in facts.tuning_rows.values())

        await _until(all_ended)

    async def _ask_again(self) -> None:
        """Repeat, undisturbed, the requests that moved or were adopted and were completed."""
        moved = {one.id for one in self.facts.moved} | {one.id for one in self.facts.adopted}
        whole = {one.id: one for one in self.facts.received if one.complete and one.id in moved}
        asked = [one for one in whole.values() if not one.limited][:MAX_TWINS]
        for number in range(0, len(asked), TWINS_AT_ONCE):
            some = asked[number : number + TWINS_AT_ONCE]
            twins = await asyncio.gather(*map(self._twin, some))
            self.facts.twins += [twin for twin in twins if twin is not None]

    async def _twin(self, one: Received) -> Twin | None:
        """None if the limits do not allow it. Repeated while the limits cannot be checked."""
        end = time.monotonic() + SETTLE_S
        while (again := await self._asked_again(one)).error == Unavailable.code:
            if time.monotonic() > end:
                break
            await asyncio.sleep(0.5)
        if again.limited or again.error in ("rate_limit_exceeded", "insufficient_quota"):
            return None
        return Twin(one.id, one.text, again.text if again.complete else again.outcome)

    async def _asked_again(self, one: Received) -> Received:
        again = Received(one.tenant, one.gateway, time.time(), path=one.path, streams=one.streams)
        headers = {"Authorization": f"Bearer {one.key}"}
        url = self.stage.urls[one.gateway] + one.path
        async with (
            httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as http,
            http.stream("POST", url, json=one.body, headers=headers) as response,
        ):
            await receive(response, again, None, four_letters=self.engine == "synthetic")
        return again

    async def _settled(self) -> None:
        """Wait until everything in the journals is in the ledger and acknowledged to every
        engine."""
        await _until(lambda: asyncio.to_thread(self._is_settled))

    def _is_settled(self) -> bool:
        files = [self.stage.folders.journal(agent) / "journal" for agent in ENGINES]
        ends = [journals.read(file).end for file in files]
        try:
            sums = self.facts.journal_sums = ledger.journal_sums()
        except psycopg.OperationalError:  # still recovering from the death of a backend
            return False
        return all(end.is_billed(sums.get(end.journal)) for end in ends)

    async def _engines_idle(self) -> bool:
        """Gateways learn of it only with an engine's next report."""
        engines = self.facts.leftovers.engines
        for url in self.stage.urls.values():
            engines |= await self.stage.busy_engines(url)
        return not any(engines.values())

    async def _stop(self) -> None:
        """Stop everything in order, gateways before engines: a leaked stream would keep them from
        stopping."""
        await self.stage.stop((TRAINER,) if self.stage.trains else ())
        await self.stage.stop((*WORKERS, CONSOLE))
        await self.stage.stop(GATEWAYS)
        await self.stage.stop(ENGINES)
        await self.stage.stop(("redis", "postgres"))
        self.facts.leftovers.drains_s = self.stage.drains_s
        self.facts.lives = self.stage.lives

    async def _compared(self, counters: Counters) -> list[BudgetState]:
        """The budgets, each compared with the ledger. Repeated, as after another minute, if a
        delayed process kept the gateway from comparing."""
        if not await _until(lambda: counters.has_all(len(GATEWAYS))):
            raise Failed("the gateways do not count in Redis")
        compared: list[BudgetState] = []

        async def agree() -> bool:
            compared[:] = await self._compared_once(counters)
            return len(compared) == customers.BUDGETS and all(one.agrees for one in compared)

        await _until(agree)
        return compared

    async def _compared_once(self, counters: Counters) -> list[BudgetState]:
        """The budgets, after each was charged once and thereby compared with the ledger."""
        await self._ask_once_each()  # now Redis counts every budget
        await self._settled()
        await counters.make_due()
        before = {name: await billed(name) for name in await counters.budgets()}
        await self._ask_once_each()
        await self._settled()
        await _until(counters.idle)
        return [await counters.budget(name, spent) for name, spent in before.items()]

    async def _ask_once_each(self) -> None:
        """Send one small request with each key of each customer with a budget, to the gateway that
        refuses without Redis."""
        (url,) = (self.stage.urls[name] for name in GATEWAYS if WITHOUT_REDIS[name] == "refuse")
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=TIMEOUT_S) as http:
            for customer in customers.budgeted(self.customers):
                for key in customer.keys:
                    await _ask(http, key, body | {"model": customer.models[0]})

    # --- what the files say ----------------------------------------------------------------------

    def _read_files(self) -> None:
        facts, folders = self.facts, self.stage.folders
        for agent in ENGINES:
            files = [journals.read(path) for path in sorted(folders.archive.glob(f"{agent}-*"))]
            facts.entries += [entry for file in files for entry in file.closed]
            facts.journal_ends.append(files[-1].end)
        for path in sorted(folders.records.iterdir()):
            facts.seen += _seen(path)
        for path in sorted(folders.root.glob("log/*.log")):
            facts.crashes += logs.crashes(path, may_be_cut=facts.only_gateways)
        for gateway in GATEWAYS:
            lives = self.stage.actors[gateway].lives
            facts.degraded += logs.degraded(folders.log(gateway), lives)
            facts.unkept[gateway] = list(logs.unkept(folders.log(gateway)))


def _seen(path: Path) -> Iterable[Seen]:
    """What one run of an agent recorded."""
    found: dict[tuple[str, int], Seen] = {}
    for line in Record.read(path):
        attempt = line.id, line.attempt
        one = found.setdefault(attempt, Seen(line.id, path.stem, attempt=line.attempt))
        counts = Counts(line.prompt_tokens, line.cached_tokens, line.completion_tokens)
        if counts != one.counts:
            one.states.append(counts)
        one.handed_on = line.handed_on
        one.finish_reason = line.finish_reason
    return found.values()


async def _ask(http: httpx.AsyncClient, key: str, body: dict[str, Any]) -> None:
    """Repeat until the limits have decided: engines redial a gateway that was away only now and
    then, and a delayed Redis counts as unavailable."""

    async def decided() -> bool:
        headers = {"Authorization": f"Bearer {key}"}
        answer = await http.post("/v1/chat/completions", json=body, headers=headers)
        if answer.status_code not in (200, 429, 503):
            raise Failed(f"after the storm: {answer.status_code} {answer.text}")
        return answer.status_code != 503

    if not await _until(decided):
        raise Failed("after the storm: a gateway has refused requests for minutes")


async def _until(condition: Callable[[], Awaitable[bool]]) -> bool:
    """Wait for the condition; returns whether it came true in time. If not, the verdict says what
    is wrong."""
    deadline = time.monotonic() + SETTLE_S
    while not (met := await condition()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    return met
