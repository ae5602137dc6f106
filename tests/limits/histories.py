"""Random histories of several gateways, run on both stores at once and compared with a model.

The model keeps every count it ever made in one list and adds up those that are young enough: too
slow to use, too simple to be wrong.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from inference.interfaces.directory import MICRO
from tenants.limits import commands
from tenants.limits.commands import (
    AnyAnswer,
    AnyCommand,
    BudgetPeriod,
    Charge,
    CountedScope,
    Granted,
    Keep,
    LimitCounts,
    LimitRefused,
    Peek,
    Release,
    Renew,
    Rooms,
    Seed,
    SettleReservation,
    SpentReport,
    TokenRate,
    Unseeded,
    Used,
    start_of,
)
from tenants.limits.memory import MemoryStore
from tenants.limits.redis_store import RedisStore
from tenants.limits.state import LEASE_MS
from tests.limits.asking import TIMEOUT_S, WITH_IMAGES, Both, Clock, charge, more
from tests.limits.asking import scope as scope_of
from tests.limits.redis_server import RedisServer

HOLDERS = ("g1", "g2", "g3")
RATE = TokenRate(1_300_000, 400_000, 2_500_001)
SCOPES = (
    scope_of(
        "t1",
        requests_per_minute=12,
        tokens_per_minute=900,
        output_tokens_per_minute=500,
        concurrent_streams=6,
        tokens_per_day=6000,
        tokens_per_month=20_000,
        cost_per_day=9000,
    ),
    scope_of(
        "k1",
        requests_per_minute=6,
        prompt_tokens_per_minute=300,
        concurrent_streams=4,
        cost_per_month=20_000,
    ),
    scope_of("a1", tokens_per_minute=600, images_per_minute=25),
)
MAX_HELD = 12
"""By one gateway: fewer than one command gives back at once, so that both stores give back the
same."""


@dataclass(eq=False)
class Count:
    """An amount counted in a window in this second, as prompt, output, requests or images."""

    window: tuple[str, str]
    kind: str
    second: int
    amount: int


@dataclass(eq=False)
class Live:
    """A reservation in the model."""

    charge: Charge
    budgets: dict[tuple[str, str], BudgetPeriod]
    counts: list[Count] = field(default_factory=list)
    prompt: int = 0
    output: int = 0

    @property
    def cost(self) -> int:
        return RATE.cost(self.prompt, 0, self.output)


class Model:
    """The rules of `state`, applied by adding up."""

    def __init__(self) -> None:
        self.counts: list[Count] = []
        self.live: dict[str, Live] = {}
        self.spent: dict[BudgetPeriod, list[int]] = {}
        self.leases: dict[str, int] = {}
        self.reported: dict[str, tuple[int, int, int]] = {}

    def used(self, scope: CountedScope, name: str, second: int, live: Live | None = None) -> int:
        window = (scope.id, name)
        if name.endswith("minute"):
            young = (c for c in self.counts if c.window == window and c.second > second - 61)
            return sum(count.amount for count in young)
        holding = [each for each in self.live.values() if scope in each.charge.scopes]
        if name == "concurrent_streams":
            return len(holding)
        budget = self.budget(scope, name, second, live)
        mine = [each for each in holding if each.budgets[window] == budget]
        if name.startswith("cost"):
            return -(-self.spent[budget][1] // MICRO) + sum(each.cost for each in mine)
        return self.spent[budget][0] + sum(each.prompt + each.output for each in mine)

    def budget(
        self, scope: CountedScope, name: str, second: int, live: Live | None
    ) -> BudgetPeriod:
        if live is not None:
            return live.budgets[scope.id, name]
        period = "day" if name.endswith("day") else "month"
        return BudgetPeriod(scope.id, period, start_of(period, second))  # type: ignore[arg-type]

    def budgets(self, asked: Charge, second: int) -> dict[tuple[str, str], BudgetPeriod]:
        live = self.live.get(asked.id)
        return {
            (scope.id, name): self.budget(scope, name, second, live)
            for scope in asked.scopes
            for name, _ in scope.limits.items()
            if name.endswith(("day", "month"))
        }

    def room(self, asked: Charge, second: int) -> int:
        """The most output tokens that every limit allows; -1 if not even 0 fit."""
        sizes = range(asked.output_tokens + 1)
        return bisect_left(sizes, True, key=lambda n: not self.fits(asked, n, second)) - 1

    def fits(self, asked: Charge, output: int, second: int) -> bool:
        live = self.live.get(asked.id)
        before = live or Live(asked, {})
        prompt = asked.prompt_tokens
        cost = RATE.cost(before.prompt + prompt, 0, before.output + output) - before.cost
        more_of = {
            "requests_per_minute": asked.quantities.get("requests", 0),
            "images_per_minute": asked.quantities.get("images", 0),
            "concurrent_streams": asked.quantities.get("requests", 0),
            "prompt_tokens_per_minute": prompt,
            "output_tokens_per_minute": output,
            "cost_per_day": cost,
            "cost_per_month": cost,
        }
        for scope in asked.scopes:
            for name, limit in scope.limits.items():
                added = more_of.get(name, prompt + output)
                whole = name in list(more_of)[:4]
                used = self.used(scope, name, second, live)
                if used + added > limit and (added or not whole):
                    return False
        return True

    def reserve(self, asked: Charge, output: int, second: int) -> None:
        fresh = Live(asked, self.budgets(asked, second))
        live = self.live.setdefault(asked.id, fresh)
        for scope in asked.scopes:
            for name, _ in scope.limits.items():
                for kind, amount in amounts(name, asked, output):
                    count = Count((scope.id, name), kind, second, amount)
                    self.counts.append(count)
                    live.counts.append(count)
        live.prompt += asked.prompt_tokens
        live.output += output

    def end(
        self, id: str, second: int, figures: tuple[int, int, int] | None, *, request: bool
    ) -> None:
        """`figures` are the prompt, cached and output tokens that stay counted; None: what was
        reserved."""
        live = self.live.pop(id, None)
        self.reported.pop(id, None)
        if live is None:
            return
        prompt, cached, output = figures or (live.prompt, 0, live.output)
        pico = (prompt - cached) * RATE.prompt + cached * RATE.cached_prompt + output * RATE.output
        cost = pico if figures else live.cost * MICRO
        for budget in set(live.budgets.values()):
            self.spent[budget][0] += prompt + output
            self.spent[budget][1] += cost
        for window in {count.window for count in live.counts}:
            mine = [count for count in live.counts if count.window == window]
            uncached = prompt - cached if window[1].startswith("prompt") else prompt
            for kind, final in {
                "requests": int(request and any(c.kind == "requests" and c.amount for c in mine)),
                "prompt": uncached,
                "output": output,
                "images": sum(c.amount for c in mine if request and c.kind == "images"),
            }.items():
                of_kind = [count for count in mine if count.kind == kind]
                if of_kind:
                    self.correct(of_kind, final, second)

    def correct(self, counts: list[Count], final: int, second: int) -> None:
        unused = sum(count.amount for count in counts) - final
        if unused < 0:
            self.counts.append(Count(counts[0].window, counts[0].kind, second, -unused))
        for count in reversed(counts):
            back = max(0, min(unused, count.amount))
            count.amount -= back
            unused -= back

    def bury(self, now_ms: int) -> None:
        """End the reservations of one holder whose lease has expired, as one command does."""
        over = [holder for holder, until in self.leases.items() if until <= now_ms]
        if over:
            dead = min(over, key=lambda holder: (self.leases[holder], holder))
            del self.leases[dead]
            for id in [id for id, live in self.live.items() if live.charge.holder == dead]:
                self.end(id, now_ms // 1000, self.reported.get(id, (0, 0, 0)), request=True)


def amounts(name: str, asked: Charge, output: int) -> Iterator[tuple[str, int]]:
    """What a window counts of a charge, by kind."""
    if name in ("requests_per_minute", "images_per_minute"):
        kind = name.partition("_")[0]
        yield kind, asked.quantities.get(kind, 0)
    if name in ("tokens_per_minute", "prompt_tokens_per_minute"):
        yield "prompt", asked.prompt_tokens
    if name in ("tokens_per_minute", "output_tokens_per_minute"):
        yield "output", output


class Lives(RuleBasedStateMachine):
    """Several gateways come, reserve, extend, end and die, while time passes in whole seconds."""

    server: RedisServer

    @initialize()
    def start(self) -> None:
        with self.server.client() as client:
            client.flushall()
        self.clock = Clock()
        self.runner = asyncio.Runner()
        self.store = self.runner.run(self.make_store())
        self.model = Model()
        self.known: dict[str, Charge] = {}
        self.numbers = iter(range(10_000))

    async def make_store(self) -> Both:
        memory = MemoryStore(self.clock, WITH_IMAGES)
        url, kinds = self.server.url, WITH_IMAGES
        return Both(memory, RedisStore(url, clock=self.clock, timeout_s=TIMEOUT_S, kinds=kinds))

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.run(self.store.close())
            self.runner.close()

    @property
    def second(self) -> int:
        return self.clock.now_ms // 1000

    def ask(self, command: AnyCommand) -> AnyAnswer:
        (answer,) = self.ask_all(command)
        return answer

    def ask_all(self, *commands: AnyCommand) -> list[AnyAnswer]:
        return self.runner.run(self.store.run(*commands))

    def charge(self, asked: Charge) -> None:
        self.model.leases[asked.holder] = self.clock.now_ms + LEASE_MS
        self.model.bury(self.clock.now_ms)
        wanted = list(dict.fromkeys(self.model.budgets(asked, self.second).values()))
        missing = [budget for budget in wanted if budget not in self.model.spent]
        if missing:
            answer = self.ask(asked)
            assert isinstance(answer, Unseeded)
            assert set(answer.budgets) == set(missing)
            for budget in missing:
                self.ask(Seed(budget, 0, 0))
                self.model.spent[budget] = [0, 0]
            self.model.bury(self.clock.now_ms)
        room = self.model.room(asked, self.second)
        answer = self.ask(asked)
        if room >= asked.least_output_tokens:
            assert isinstance(answer, Granted), (room, answer)
            assert answer.output_tokens == room
            self.model.reserve(asked, room, self.second)
            self.known[asked.id] = asked
        else:
            assert isinstance(answer, LimitRefused), (room, answer)
            self.agree_on(answer, asked)

    def agree_on(self, answer: LimitRefused, asked: Charge) -> None:
        scope, live = asked.scopes[answer.scope], self.model.live.get(asked.id)
        assert answer.used == self.model.used(scope, answer.kind, self.second, live)
        if answer.wait_ms is not None and answer.kind.endswith("minute"):
            later = self.second + answer.wait_ms // 1000
            limit = scope.limits[answer.kind]
            assert self.model.used(scope, answer.kind, later) + answer.requested <= limit
            assert self.model.used(scope, answer.kind, later - 1) + answer.requested > limit

    def has_room(self, holder: str) -> bool:
        return sum(live.charge.holder == holder for live in self.model.live.values()) < MAX_HELD

    @rule(
        holder=st.sampled_from(HOLDERS),
        scopes=st.sampled_from([SCOPES, SCOPES[:2], SCOPES[:1], SCOPES[1:]]),
        prompt=st.integers(0, 120),
        output=st.integers(0, 150),
        least=st.integers(0, 60),
        images=st.integers(0, 12),
    )
    def reserve(
        self,
        holder: str,
        scopes: tuple[CountedScope, ...],
        prompt: int,
        output: int,
        least: int,
        images: int,
    ) -> None:
        if self.has_room(holder):
            fields = {"holder": holder, "rate": RATE, "least_output_tokens": min(least, output)}
            fields["quantities"] = {"requests": 1, "images": images}
            id = f"r{next(self.numbers)}"
            self.charge(charge(id, *scopes, prompt=prompt, output=output, **fields))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), output=st.integers(1, 150))
    def extend(self, data: st.DataObject, output: int) -> None:
        """Also reservations that were given back, and requests that have ended."""
        id = data.draw(st.sampled_from(sorted(self.known)))
        known = self.known[id]
        if id in self.model.live or self.has_room(known.holder):
            self.charge(more(known, output))

    @precondition(lambda self: self.known)
    @rule(
        data=st.data(),
        prompt=st.integers(0, 150),
        cached=st.integers(0, 100),
        output=st.integers(0, 170),
    )
    def settle(self, data: st.DataObject, prompt: int, cached: int, output: int) -> None:
        """By any gateway, at any time, also repeatedly."""
        id = data.draw(st.sampled_from(sorted(self.known)))
        used = (prompt, min(cached, prompt), output)
        self.ask(SettleReservation(id, *used))
        self.model.end(id, self.second, used, request=True)

    @precondition(lambda self: self.model.live)
    @rule(
        data=st.data(),
        prompt=st.integers(0, 150),
        cached=st.integers(0, 100),
        output=st.integers(0, 170),
    )
    def report(self, data: st.DataObject, prompt: int, cached: int, output: int) -> None:
        """By another gateway than the reserving one, which may be dead but still has a lease."""
        id = data.draw(st.sampled_from(sorted(self.model.live)))
        holder = self.model.live[id].charge.holder
        if self.model.leases.get(holder, 0) > self.clock.now_ms:
            used = (prompt, min(cached, prompt), output)
            self.ask(SpentReport(id, *used))
            if output >= self.model.reported.get(id, used)[2]:
                self.model.reported[id] = used

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.known)))
        self.ask(Keep(id))
        self.model.end(id, self.second, None, request=True)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.model.live)))
        self.ask(Release(id))
        self.model.end(id, self.second, (0, 0, 0), request=False)

    @rule(holders=st.sets(st.sampled_from(HOLDERS)), seconds=st.integers(0, 14))
    def pass_time(self, holders: set[str], seconds: int) -> None:
        """These gateways renew their leases; those of others may expire."""
        self.clock.pass_s(seconds)
        for holder in sorted(holders):
            self.model.leases[holder] = self.clock.now_ms + LEASE_MS
            self.ask(Renew(holder, LEASE_MS))
            self.model.bury(self.clock.now_ms)

    @rule(seconds=st.sampled_from([59, 60, 61, 62, 3600, 43_200]))
    def sleep(self, seconds: int) -> None:
        self.clock.pass_s(seconds)

    @rule(scope=st.sampled_from(SCOPES))
    def everything_agrees(self, scope: CountedScope) -> None:
        """Compares the counts against each limit: a limit of zero refuses everything and states its
        count."""
        for name, _ in scope.limits.items():
            window = scope.id, name
            none = CountedScope(scope.id, {name: 0})
            some = {"requests": 1, "images": 1}
            probe = charge("probe", none, rate=TokenRate(0, 0, 10**6), quantities=some)
            self.model.leases[probe.holder] = self.clock.now_ms + LEASE_MS
            self.model.bury(self.clock.now_ms)
            budget = self.model.budgets(probe, self.second).get(window)
            answer = self.ask(probe)
            if budget is None or budget in self.model.spent:
                assert isinstance(answer, LimitRefused)
                assert answer.used == self.model.used(scope, name, self.second)

    @invariant()
    def rooms_agree(self) -> None:
        if hasattr(self, "model"):
            rooms, *counts = self.ask_all(Peek(SCOPES), *map(commands.Count, SCOPES))
            assert isinstance(rooms, Rooms)
            assert [each.remaining for each in rooms.left] == list(self.rooms())
            assert counts == [LimitCounts(list(self.counted(scope))) for scope in SCOPES]

    def counted(self, scope: CountedScope) -> Iterator[Used]:
        for name, _ in scope.limits.items():
            if not WITH_IMAGES[name].is_budget:
                yield Used(name, self.model.used(scope, name, self.second))

    def rooms(self) -> Iterator[int]:
        for scope in SCOPES:
            for name in ("requests_per_minute", "tokens_per_minute", "images_per_minute"):
                if (limit := scope.limits.get(name)) is not None:
                    yield max(0, limit - self.model.used(scope, name, self.second))
