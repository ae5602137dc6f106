"""The queue over whole traces, on a toy engine that gives every running request one token per step.

Not among the pure tests: coverage would make them four times as slow, and covers every branch
without them.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.scheduler.capacity import GROWTH_TOKENS
from inference.agent.scheduler.charges import LEAST_CHARGE
from inference.agent.scheduler.lane import QueuedRequest
from inference.agent.scheduler.queue import LEEWAY, Queue
from inference.agent.scheduler.slots import Slots
from inference.link.workload import Workload

STEP_S = 0.05


@dataclass(frozen=True)
class Job:
    """A request as its client knows it. `at` is its arrival in seconds; the lengths are the true
    ones."""

    at: float
    tenant: str
    prompt: int
    output: int
    weight: float = 1.0
    lane: str = "interactive"
    adapter: str | None = None
    cached: int = 0


@dataclass
class Run:
    """A job on the engine. `came`, `began` and `ended` are step numbers."""

    id: str
    job: Job
    came: int
    began: int = 0
    ended: int = 0
    generated: int = 0

    @property
    def held(self) -> int:
        return self.job.prompt + self.generated + GROWTH_TOKENS


@dataclass
class Engine:
    """One queue and its toy engine. `service` is by tenant: tokens as the queue counts them,
    divided by the weight."""

    queue: Queue
    sequences: int
    kv_tokens: int = 1 << 60
    slots: int = 1 << 30
    clock: int = 0
    waiting: dict[str, Run] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    waiting_of: Counter[str] = field(default_factory=Counter)
    """By tenant: how many of its requests wait."""
    running_of: Counter[str] = field(default_factory=Counter)
    done: list[Run] = field(default_factory=list)
    service: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    ids: Iterator[int] = field(default_factory=itertools.count)

    @property
    def now(self) -> float:
        return self.clock * STEP_S

    def push(self, job: Job) -> None:
        run = Run(f"{next(self.ids)}", job, self.clock)
        request = QueuedRequest(
            run.id,
            job.tenant,
            job.adapter,
            Workload(prompt_tokens=job.prompt),
            weight=job.weight,
            lane=job.lane,
        )
        self.queue.push(request, self.now)
        self.waiting[run.id] = run
        self.waiting_of[job.tenant] += 1

    def has(self, tenant: str) -> bool:
        """Whether a request of the tenant waits or runs."""
        return bool(self.waiting_of[tenant] or self.running_of[tenant])

    def admit(self) -> None:
        admitted = self.queue.admit(self.now)
        for id in admitted:
            run = self.runs[id] = self.waiting.pop(id)
            self.waiting_of[run.job.tenant] -= 1
            self.running_of[run.job.tenant] += 1
            run.began = self.clock
            self.service[run.job.tenant] += (run.job.prompt - run.job.cached) / run.job.weight
        if not admitted:
            return
        held = sum(one.held for one in self.runs.values())
        assert held <= self.kv_tokens or len(self.runs) == 1
        assert len(self.runs) <= self.sequences
        assert len({run.job.adapter for run in self.runs.values()} - {None}) <= self.slots

    def step(self) -> None:
        """Admit requests, then generate one token for each running one."""
        self.admit()
        self.clock += 1
        for run in list(self.runs.values()):
            run.generated += 1
            self.service[run.job.tenant] += 1 / run.job.weight
            self.queue.progress(
                run.id,
                prompt_tokens=run.job.prompt,
                cached_tokens=run.job.cached,
                completion_tokens=run.generated,
            )
            if run.generated >= run.job.output:
                run.ended = self.clock
                self.queue.finish(run.id, self.now)
                self.running_of[run.job.tenant] -= 1
                self.done.append(self.runs.pop(run.id))

    def replay(self, trace: Iterable[Job]) -> list[Run]:
        """Run the whole trace to its end."""
        coming = deque(sorted(trace, key=lambda job: job.at))
        while coming or self.waiting or self.runs:
            while coming and coming[0].at <= self.now:
                self.push(coming.popleft())
            self.step()
            assert self.clock < 10**6, "somebody waits for ever"
        return self.done


def engine(sequences: int = 8, kv_tokens: int = 1 << 60, slots: int = 8, **rules: object) -> Engine:
    queue = Queue(
        Slots(active=slots, resident=slots),
        max_running=sequences,
        kv_tokens=kv_tokens,
        max_queued=10**6,
        max_queued_per_tenant=10**6,
        **rules,  # type: ignore[arg-type]
    )
    return Engine(queue, sequences, kv_tokens, slots)


def keep_waiting(made: Engine, next_job: Callable[[], Job], tenant: str, count: int) -> None:
    """Bring a tenant's waiting requests up to `count`."""
    for _ in range(count - made.waiting_of[tenant]):
        made.push(next_job())


def p99(values: Iterable[float]) -> float:
    ranked = sorted(values)
    return ranked[math.ceil(0.99 * len(ranked)) - 1]


# --- shares --------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10**6),
    weights=st.tuples(st.sampled_from([1.0, 2.0, 4.0]), st.sampled_from([1.0, 3.0])),
    reserved=st.integers(0, 2),
    kv_tokens=st.sampled_from([900, 2500, 10**6]),
)
def test_the_service_of_two_that_always_wait_differs_by_no_more_than_the_papers_bound(
    seed: int, weights: tuple[float, float], reserved: int, kv_tokens: int
) -> None:
    """Over any period: 2 max(longest prompt, tokens on the engine) / least weight, plus 2 LEEWAY if
    sequences are reserved. Other tenants come and go, and one long answer runs."""
    sequences, longest_prompt, longest_output = 6, 400, 200
    chance = random.Random(seed)
    made = engine(sequences, kv_tokens, reserved=reserved, patience_s=0.0)
    scales = {"f": chance.choice([20, 400]), "g": chance.choice([20, 400])}

    def next_of(tenant: str, weight: float) -> Job:
        prompt, output = chance.randint(1, scales[tenant]), chance.randint(1, longest_output)
        return Job(0.0, tenant, prompt, output, weight)

    made.push(Job(0.0, "long", 1, 5000))
    gaps = [0.0]
    for _ in range(600):
        for tenant, weight in zip("fg", weights, strict=True):
            keep_waiting(made, lambda t=tenant, w=weight: next_of(t, w), tenant, 3)  # type: ignore[misc]
        if chance.random() < 0.05:
            made.push(Job(0.0, chance.choice(["long", "h"]), chance.randint(1, 100), 20))
        made.step()
        gaps.append(made.service["f"] - made.service["g"])
    on_engine = min(kv_tokens, sequences * (longest_prompt + longest_output))
    bound = 2 * max(longest_prompt, on_engine) / min(weights) + (2 * LEEWAY if reserved else 0)
    assert max(gaps) - min(gaps) <= bound


@pytest.mark.parametrize("reserved", [0, 2])
def test_weights_of_four_to_one_are_kept(reserved: int) -> None:
    """Although the tenant with the lower weight sends four times as many tokens per request."""
    made = engine(16, 8000, reserved=reserved)
    for _ in range(6000):
        keep_waiting(made, lambda: Job(0.0, "a", 50, 25, 4.0), "a", 20)
        keep_waiting(made, lambda: Job(0.0, "b", 200, 100, 1.0), "b", 20)
        made.step()
    ratio = 4 * made.service["a"] / made.service["b"]
    assert 3.6 <= ratio <= 4.4


def skewed(*, told: bool) -> float:
    """The service of a tenant of weight 4 on two engines, per token of a tenant of weight 1.

    The heavy tenant floods both engines, the light one only the first. Each engine hears late what
    the other one gave.
    """
    engines = [engine(8, 5000), engine(8, 5000)]
    news: deque[tuple[int, dict[str, float]]] = deque()
    for clock in range(8000):
        for number, made in enumerate(engines):
            keep_waiting(made, lambda: Job(0.0, "a", 40, 40, 4.0), "a", 12)
            if not number:
                keep_waiting(made, lambda: Job(0.0, "b", 80, 20), "b", 12)
            made.step()
        if told and clock % 20 == 0:
            for number, made in enumerate(engines):
                news.append((number, made.queue.gained()))
            while len(news) > 4:
                sender, gained = news.popleft()
                engines[1 - sender].queue.served_elsewhere(gained)
    got = {t: sum(made.service[t] for made in engines) for t in "ab"}
    return 4 * got["a"] / got["b"]


def test_weights_are_kept_over_two_engines_under_skewed_traffic() -> None:
    assert 3.6 <= skewed(told=True) <= 4.4
    assert skewed(told=False) > 8, "else this shows nothing"


def test_tenants_that_wait_for_slots_hold_no_counter_down() -> None:
    """Otherwise a newcomer would start level with them and owe nothing for the service that others
    had meanwhile; and so would they, once they have a slot."""
    kv_tokens, crowd = 4000, [f"c{number}" for number in range(10)]
    made = engine(16, kv_tokens, slots=1)
    shares: list[Counter[str]] = []
    for clock in range(6000):
        keep_waiting(made, lambda: Job(0.0, "flood", 50, 100), "flood", 20)
        if clock >= 2000:
            keep_waiting(made, lambda: Job(0.0, "new", 50, 100), "new", 20)
        for tenant in crowd:
            if clock >= 4000 or not made.has(tenant):
                job = Job(0.0, tenant, 50, 100, adapter=tenant)
                keep_waiting(made, lambda job=job: job, tenant, 4)  # type: ignore[misc]
        made.step()
        if clock % 2000 == 1999:
            shares.append(Counter(made.service))
    for before, after in itertools.pairwise(shares):
        flood, new = (after[tenant] - before[tenant] for tenant in ("flood", "new"))
        assert abs(flood - new) <= 2 * kv_tokens < flood


# --- newcomers -----------------------------------------------------------------------------------


def test_a_tenant_with_one_request_does_not_wait_for_a_flood() -> None:
    """A hundred parallel long answers at any time; each request of the other tenant starts at
    once."""
    made = engine(32, 20_000, reserved=2)
    for clock in range(8000):
        keep_waiting(made, lambda: Job(0.0, "flood", 100, 400), "flood", 100)
        if clock > 500 and not made.has("one"):
            made.push(Job(0.0, "one", 60, 30))
        made.step()
    waits = [run.began - run.came for run in made.done if run.job.tenant == "one"]
    assert len(waits) > 200
    assert p99(waits) <= 1


def test_a_thousand_tenants_wait_no_longer_than_their_turn() -> None:
    """Ten tenants flood. The others, with single requests now and then, hardly wait."""
    chance = random.Random(7)
    made = engine(64, 60_000, reserved=4)
    for _ in range(4000):
        for flood in range(10):
            keep_waiting(made, lambda t=f"f{flood}": Job(0.0, t, 100, 200), f"f{flood}", 5)  # type: ignore[misc]
        if chance.random() < 0.08:
            made.push(Job(0.0, f"t{chance.randrange(1000)}", 50, 20))
        made.step()
    waits = [run.began - run.came for run in made.done if run.job.tenant[0] == "t"]
    assert len(waits) > 250
    assert p99(waits) <= 10, "an answer of a flood takes 200 steps"


def test_probes_of_the_platform_are_not_starved() -> None:
    made = engine(8, 5000, slots=2, reserved=1)
    for clock in range(2000):
        keep_waiting(made, lambda: Job(0.0, "flood", 100, 100, adapter="X"), "flood", 30)
        keep_waiting(made, lambda: Job(0.0, "more", 100, 100, adapter="Y"), "more", 30)
        if clock % 400 == 50:
            made.push(Job(0.0, "", 0, 3, adapter=f"probe{clock}"))
        made.step()
    waits = [(run.began - run.came) * STEP_S for run in made.done if run.job.tenant == ""]
    assert len(waits) == 5
    assert max(waits) <= 1.0 + 100 * STEP_S + STEP_S, "patience, and an answer that began before"


def test_batch_waits_no_longer_than_its_patience_and_its_turn() -> None:
    made = engine(8, 5000, reserved=1, batch_patience_s=10.0)
    for clock in range(4000):
        keep_waiting(made, lambda: Job(0.0, "chat", 50, 50), "chat", 20)
        if clock % 100 == 0:
            made.push(Job(0.0, "bulk", 50, 50, lane="batch"))
        made.step()
    waits = [(run.began - run.came) * STEP_S for run in made.done if run.job.tenant == "bulk"]
    assert len(waits) > 30
    assert 9.0 <= max(waits) <= 10.0 + 50 * STEP_S


def test_a_tenants_chat_does_not_wait_for_all_that_it_left_for_later() -> None:
    """Two minutes' worth of batch requests arrive at once, and a chat every five seconds."""
    made = engine(8, 5000, reserved=1, batch_patience_s=10.0)
    for _ in range(200):
        made.push(Job(0.0, "a", 20, 100, lane="batch"))
    for clock in range(2500):
        if clock % 100 == 0:
            made.push(Job(0.0, "a", 20, 20))
        made.step()
    chats = [run for run in made.done if run.job.lane == "interactive"]
    assert len(chats) == 25
    assert max(run.began - run.came for run in chats) <= 100, "one answer of a batch request"


# --- adapters ------------------------------------------------------------------------------------


def rotating(adapters: int, slots: int) -> Engine:
    """Answers of unequal length, four of each adapter waiting at any time."""
    chance = random.Random(3)
    made = engine(32, slots=slots)
    for _ in range(4000):
        for a in range(adapters):
            keep_waiting(
                made,
                lambda a=a: Job(0.0, f"t{a}", 20, chance.randint(3, 80), adapter=f"{a}"),  # type: ignore[misc]
                f"t{a}",
                4,
            )
        made.step()
    return made


def test_twice_as_many_adapters_as_slots_cost_little_throughput() -> None:
    """No cliff: each adapter that gets a slot keeps it for a turn and fills the engine
    meanwhile."""
    resident, rotated = rotating(4, slots=4), rotating(8, slots=4)
    assert len(rotated.done) > 0.9 * len(resident.done)
    shares = Counter(run.job.tenant for run in rotated.done)
    assert max(shares.values()) < 1.3 * min(shares.values())


def beside_many_adapters(quota: int | None) -> float:
    """The p99 of a tenant's waits for a slot, in steps, while another tenant keeps all four
    busy."""
    chance = random.Random(4)
    made = engine(16, slots=4, slots_per_tenant=quota, patience_s=5.0, reserved=1)

    def of_many() -> Job:
        return Job(0.0, "many", 20, chance.randint(20, 60), adapter=f"m{chance.randrange(8)}")

    for clock in range(6000):
        keep_waiting(made, of_many, "many", 40)
        if clock % 40 == 0:
            made.push(Job(0.0, "few", 20, 10, adapter=f"f{clock % 3}"))
        made.step()
    return p99(run.began - run.came for run in made.done if run.job.tenant == "few")


def test_a_tenant_with_many_adapters_leaves_slots_to_others() -> None:
    """With a quota of two, others wait for at most one answer; without it, also for their
    patience."""
    assert beside_many_adapters(quota=2) <= 60
    assert beside_many_adapters(quota=None) > 100, "else this shows nothing"


# --- whole traces --------------------------------------------------------------------------------


def check_work_conserving(made: Engine, patience_s: float, open_places: int, kv_open: int) -> None:
    """Check that no sequence is idle while a request that fits waits, apart from the stated
    exceptions."""
    made.admit()
    heads: dict[tuple[str, str], Run] = {}
    for run in made.waiting.values():
        heads.setdefault((run.job.tenant, run.job.lane), run)
    held = sum(run.held for run in made.runs.values())
    too_large = [run for run in heads.values() if held + run.held > kv_open]
    if len(made.runs) >= open_places or any(
        (made.clock - run.came) * STEP_S >= patience_s for run in too_large
    ):
        return
    assert len(too_large) == len(heads) and (made.runs or not heads)


lengths = st.one_of(st.integers(1, 30), st.integers(200, 900))  # heavy-tailed
jobs = st.builds(
    Job,
    at=st.floats(0, 10),
    tenant=st.sampled_from(["", "a", "b", "c", "d"]),
    prompt=lengths,
    output=st.one_of(st.integers(1, 10), st.integers(50, 100)),
    weight=st.just(1.0),
    lane=st.sampled_from(["interactive", "interactive", "batch"]),
    adapter=st.none(),
)


@given(st.lists(jobs, max_size=60), st.integers(0, 2))
def test_no_sequence_is_idle_while_a_request_that_fits_waits(
    trace: list[Job], reserved: int
) -> None:
    kv_tokens, sequences, patience_s = 1500, 5, 2.0
    made = engine(sequences, kv_tokens, reserved=reserved, patience_s=patience_s)
    kv_open = kv_tokens - kv_tokens * reserved // sequences
    coming = deque(sorted(trace, key=lambda job: job.at))
    while coming or made.waiting or made.runs:
        while coming and coming[0].at <= made.now:
            made.push(coming.popleft())
        check_work_conserving(made, patience_s, sequences - reserved, kv_open)
        made.step()
        assert made.clock < 10_000


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.sampled_from("ab"), st.sampled_from("XYZ"), lengths),
        max_size=60,
    ),
    st.sampled_from([None, 1]),
)
def test_no_slot_is_idle_while_a_request_waits_for_one(
    trace: list[tuple[float, str, str, int]], quota: int | None
) -> None:
    made = engine(6, slots=2, slots_per_tenant=quota)
    coming = deque(
        Job(at, tenant, 10, min(length, 100), adapter=tenant + adapter)
        for at, tenant, adapter, length in sorted(trace)
    )
    while coming or made.waiting or made.runs:
        while coming and coming[0].at <= made.now:
            made.push(coming.popleft())
        made.admit()
        used = {run.job.adapter for run in made.runs.values()}
        assert len(used) == 2 or len(made.runs) == 6 or not made.waiting
        made.step()
        assert made.clock < 10_000


@given(
    st.lists(
        st.builds(
            Job,
            at=st.floats(0, 10),
            tenant=st.sampled_from(["probe", "a", "b"]),
            prompt=lengths,
            output=st.integers(1, 60),
            weight=st.sampled_from([0.25, 1.0]),
            lane=st.sampled_from(["interactive", "batch"]),
            adapter=st.sampled_from([None, "X", "Y", "Z"]),
        ),
        max_size=25,
    ),
    st.sampled_from([None, 1]),
)
def test_a_flood_that_never_ends_starves_nobody(trace: list[Job], quota: int | None) -> None:
    """Two tenants flood both lanes, all slots and the KV. Every other request starts within its
    patience plus the time in which the floods get as much service as the requests before it, plus
    the slack."""
    made = engine(6, 1200, slots=2, reserved=1, slots_per_tenant=quota, batch_patience_s=5.0)
    work = sum(4 * (job.prompt + job.output) for job in trace)
    bound = (5.0 + 2 * 1.0) / STEP_S + 3 * work + 2 * (1200 + LEEWAY)
    coming = deque(sorted(trace, key=lambda job: job.at))
    while sum(run.job.tenant not in "fgh" for run in made.done) < len(trace):
        while coming and coming[0].at <= made.now:
            made.push(coming.popleft())
        keep_waiting(made, lambda: Job(0.0, "f", 60, 40, adapter="F"), "f", 8)
        keep_waiting(made, lambda: Job(0.0, "g", 60, 40, adapter="G"), "g", 8)
        keep_waiting(made, lambda: Job(0.0, "h", 60, 40, lane="batch"), "h", 8)
        made.step()
        assert made.clock < 10 / STEP_S + bound


def synthetic(seed: int, seconds: float) -> list[Job]:
    """Twenty tenants of unequal demand, in bursts, with heavy-tailed lengths."""
    chance = random.Random(seed)
    trace, at = [], 0.0
    while at < seconds:
        at += chance.expovariate(0.4)
        tenant = f"t{min(int(chance.paretovariate(0.7)), 20)}"
        adapter = None if chance.random() < 0.3 else f"{tenant}-{chance.randrange(3)}"
        lane = "batch" if chance.random() < 0.2 else "interactive"
        for _ in range(min(int(chance.paretovariate(0.8)), 40)):
            prompt = min(int(20 * chance.paretovariate(1.1)), 3000)
            output = min(int(10 * chance.paretovariate(1.2)), 400)
            cached = chance.choice([0, prompt // 2])
            trace.append(Job(at, tenant, prompt, output, 1.0, lane, adapter, cached))
    return trace


RECORDED = [
    # second, tenant, prompt, output, lane, adapter; one minute of a demo day with real lengths
    (0.0, "acme", 41, 18, "interactive", "support"),
    (0.3, "acme", 57, 120, "interactive", "support"),
    (0.4, "globex", 812, 240, "interactive", "contracts"),
    (1.1, "initech", 23, 9, "interactive", None),
    (1.2, "initech", 23, 11, "interactive", None),
    (1.2, "initech", 23, 8, "interactive", None),
    (2.0, "acme", 44, 31, "interactive", "sales"),
    (2.1, "hooli", 2950, 12, "batch", "labels"),
    (2.1, "hooli", 2871, 12, "batch", "labels"),
    (2.1, "hooli", 3012, 12, "batch", "labels"),
    (2.1, "hooli", 2644, 12, "batch", "labels"),
    (2.1, "hooli", 2790, 12, "batch", "labels"),
    (2.1, "hooli", 2913, 12, "batch", "labels"),
    (3.7, "globex", 90, 388, "interactive", "contracts"),
    (4.0, "", 16, 4, "interactive", "umbrella-new"),
    (4.2, "umbrella", 130, 61, "interactive", "triage"),
    (4.2, "umbrella", 128, 60, "interactive", "triage"),
    (4.2, "umbrella", 131, 75, "interactive", "triage-fr"),
    (4.3, "umbrella", 140, 52, "interactive", "triage-de"),
    (4.3, "umbrella", 122, 66, "interactive", "triage-it"),
    (4.3, "umbrella", 127, 300, "interactive", "triage-es"),
    (5.9, "acme", 39, 22, "interactive", "support"),
    (6.0, "initech", 24, 10, "interactive", None),
    (6.4, "globex", 5200, 95, "interactive", "contracts"),
    (6.5, "acme", 52, 27, "interactive", "sales"),
    (8.8, "acme", 48, 260, "interactive", "support"),
    (9.0, "hooli", 2700, 12, "batch", "labels"),
    (9.0, "hooli", 2755, 12, "batch", "labels"),
    (9.1, "vandelay", 300, 30, "interactive", None),
    (9.1, "vandelay", 310, 34, "interactive", None),
    (9.2, "vandelay", 305, 29, "interactive", None),
    (9.2, "vandelay", 290, 33, "interactive", None),
    (9.2, "vandelay", 330, 350, "interactive", None),
    (9.3, "vandelay", 301, 31, "interactive", None),
    (12.5, "acme", 40, 16, "interactive", "support"),
    (14.0, "umbrella", 129, 70, "interactive", "triage"),
    (14.0, "", 16, 4, "interactive", "acme-new"),
    (15.5, "initech", 1900, 14, "batch", None),
    (15.5, "initech", 1880, 14, "batch", None),
    (19.0, "globex", 75, 41, "interactive", "contracts"),
    (19.1, "acme", 45, 20, "interactive", "sales"),
    (19.1, "acme", 46, 21, "interactive", "support"),
]


def recorded() -> list[Job]:
    """Three copies of that minute, slightly shifted: the afternoon peak."""
    return [
        Job(second + shift, tenant, prompt, output, 1.0, lane, adapter)
        for shift in (0.0, 0.5, 4.0)
        for second, tenant, prompt, output, lane, adapter in RECORDED
    ]


@pytest.mark.parametrize(
    "trace", [recorded(), synthetic(1, 300.0), synthetic(2, 300.0)], ids=["recorded", "s1", "s2"]
)
@pytest.mark.parametrize("quota", [None, 2])
def test_whole_traces_are_served_within_all_bounds(trace: list[Job], quota: int | None) -> None:
    """The engine asserts sequences, slots and KV at each admission; every request is served and
    accounted for."""
    made = engine(
        12, 6000, slots=3, reserved=1, slots_per_tenant=quota, patience_s=0.5, batch_patience_s=10.0
    )
    done = made.replay(trace)
    assert len(done) == len(trace)
    served = made.queue.gained()
    used = (job.prompt - job.cached + job.output for job in trace)
    assert sum(served.values()) == sum(max(LEAST_CHARGE, tokens) for tokens in used)
    assert made.queue._slots._has == Counter()
    assert made.queue._capacity.kv_held == 0


def test_in_the_recorded_peak_small_requests_do_not_wait_for_large_ones() -> None:
    """The whole peak takes 50 s. Small requests wait for at most half a second."""
    made = engine(12, 9000, slots=8, reserved=2, batch_patience_s=10.0)
    done = made.replay(recorded())
    assert made.now > 50
    for tenant in ("initech", ""):
        own = [run for run in done if (run.job.tenant, run.job.lane) == (tenant, "interactive")]
        assert max(run.began - run.came for run in own) * STEP_S <= 0.5
