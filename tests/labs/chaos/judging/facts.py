"""What each side reported of a run, as plain values: the verdict compares nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.labs.chaos.plan import Strike


class Counts(NamedTuple):
    """Tokens of one request, or sums of them."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        return cls(*map(sum, zip(*parts, strict=True)))


NOTHING = Counts()


@dataclass(frozen=True, slots=True)
class Entry:
    """An ended attempt of a request, from an engine's journal; the ledger must agree.

    `started_at` is a unix time in seconds, of which PostgreSQL keeps microseconds. `inherited` of
    the output tokens are from lower attempts.
    """

    id: str
    journal: str
    tenant_id: int
    key_id: int
    model: str
    counts: Counts
    finish_reason: str
    started_at: float = field(compare=False)
    attempt: int = 1
    inherited: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.attempt


@dataclass(frozen=True, slots=True)
class Event:
    """A row of the ledger: the entry and what was derived from it.

    `made_at` is the unix time in seconds at which the gateway accepted the request; the limits let
    it pass between then and the entry's `started_at`. `prices` are of prompt, cached prompt and
    output; `group` is its row in the rollups; `regenerated` are output tokens of lower attempts
    from which no attempt continued.
    """

    entry: Entry
    made_at: float
    engine_id: str
    prices: tuple[int, int, int]
    cost: int
    group: Group
    regenerated: int = 0


class Group(NamedTuple):
    """The key of a row of the rollups. `hour` is a unix time in seconds; for a month, its first
    hour."""

    hour: int
    tenant_id: int
    key_id: int
    adapter: str
    model: str
    base_model: str


class Sums(NamedTuple):
    """Sums over requests."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: int = 0

    @classmethod
    def of(cls, events: Iterable[Event]) -> Sums:
        rows = [(1, *event.entry.counts, event.cost) for event in events]
        return cls(*map(sum, zip(*rows, strict=True)))


@dataclass(frozen=True, slots=True)
class JournalSums:
    """Both sides of a journal in the database; sums without costs."""

    engine_id: str
    in_ledger: Sums
    counted: Sums
    unjournaled_tokens: int
    waiting: int


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """The state of a journal at some moment, finally when its agent had stopped: requests ever
    closed, and what was left."""

    journal: str
    requests: int
    open: int
    unacknowledged: int

    def is_billed(self, said: JournalSums | None) -> bool:
        """Whether all of it is in the ledger, and the engine's own count in the database as well.

        The reports alone do not tell: one that a gateway writes late is from before the last
        request.
        """
        return (
            not (self.open or self.unacknowledged)
            and said is not None
            and said.waiting == 0
            and said.in_ledger == said.counted
            and said.counted.requests == self.requests
        )


@dataclass(slots=True)
class Seen:
    """One attempt of a request, as the recorder inside an engine saw it.

    `states` are the engine's counts after each of its steps; `handed_on` are the output tokens that
    it passed to the agent; `finish_reason` is the engine's own, empty if it gave none.
    """

    id: str
    run: str
    """The agent's process, `NAME-PID`."""
    states: list[Counts] = field(default_factory=list)
    handed_on: int = 0
    finish_reason: str = ""
    attempt: int = 1

    @property
    def key(self) -> tuple[str, int]:
        return self.id, self.attempt

    @property
    def counts(self) -> Counts:
        return self.states[-1] if self.states else NOTHING


@dataclass(slots=True)
class Received:
    """One request as its client saw it. Times are unix times in seconds.

    `tokens` is the least number of output tokens in the received text. In the end exactly one of
    these is set: `complete`, `left` (the client disconnected), `error` (a code in OpenAI's shape),
    `broken` (the connection broke), `wrong` (anything else, such as a hung request).
    """

    tenant: str
    gateway: str
    began: float
    key: str = ""
    """The API key."""
    path: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    streams: bool = False
    idempotency_key: str = ""
    id: str = ""
    ended: float = 0.0
    status: int = 0
    tokens: int = 0
    text: str = ""
    usage: Counts | None = None
    replayed: bool = False
    complete: bool = False
    limited: bool = False
    """A limit ended it, so the same request may have another answer."""
    left: bool = False
    error: str = ""
    broken: str = ""
    wrong: str = ""

    @property
    def outcome(self) -> str:
        if self.complete:
            return "replayed" if self.replayed else "complete"
        if self.left:
            return "client left"
        if self.wrong:
            return "WRONG"
        return self.error or "connection lost"


@dataclass(frozen=True, slots=True)
class LineGot:
    """A tenant's view of a line of a batch: `usage` if it was answered, else the `code` of its
    error. `id` is its request's, if one was made."""

    custom_id: str
    id: str = ""
    code: str = ""
    usage: Counts = NOTHING


@dataclass(slots=True)
class BatchGot:
    """A tenant's view of a batch with the lines `sent`; `status` is empty until it has ended."""

    id: str
    tenant: str
    sent: set[str]
    status: str = ""
    lines: list[LineGot] = field(default_factory=list)
    completed: int = 0
    failed: int = 0
    usage: Counts = NOTHING
    """Of all lines, as the batch reports it."""


@dataclass(slots=True)
class ResponseGot:
    """A tenant's view of a response in the background; `status` is empty until it has ended, `code`
    is that of its error."""

    tenant: str
    id: str
    status: str = ""
    code: str = ""
    usage: Counts | None = None


@dataclass(slots=True)
class TuningGot:
    """A tenant's view of a fine-tuning job of so many epochs; `status` is empty until it has ended,
    `code` is that of its error. `went_on` counts how often it went on from a saved state; a
    `faulty` one has a file that can't be read."""

    tenant: str
    epochs: int
    id: str = ""
    faulty: bool = False
    status: str = ""
    code: str = ""
    trained_tokens: int | None = None
    went_on: int = 0


class TuningRow(NamedTuple):
    """A fine-tuning job in the database, and how many adapters have its name."""

    status: str
    claimed: bool
    adapters: int


KILLED, STOPPED, DRAINED = "kill -9", "stop", "drain"
"""How a process may be ended."""


@dataclass(slots=True)
class Life:
    """One process from its start to its end. Times are unix times in seconds; `None` means never.

    `killed` is how it was ended: `kill -9`, or a request to stop for good or to restart; empty if
    it ended by itself.
    """

    name: str
    kind: str
    pid: int
    began: float
    ready: float | None = None
    ended: float | None = None
    killed: str = ""
    status: int | None = None
    asked: float | None = None
    """When it was asked to drain: soon after, it accepts no more connections, but finishes open
    ones."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A strike that hit a process; `seconds` is how long it hangs."""

    at: float
    kind: str
    name: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Moved:
    """A request that another engine continued, as its gateway logged it; `gap_s` is how long its
    reader waited."""

    id: str
    gap_s: float


@dataclass(frozen=True, slots=True)
class Adopted:
    """A request that a gateway continued after its own gateway was gone; `turn` is the resulting
    turn."""

    id: str
    turn: int


@dataclass(frozen=True, slots=True)
class Twin:
    """The answer of a request that moved or was adopted, and that of the same request while nothing
    was killed."""

    id: str
    text: str
    undisturbed: str


class Spent(NamedTuple):
    """Tokens, and their cost in micro-units of the currency."""

    tokens: int
    cost: int


@dataclass(frozen=True, slots=True)
class BudgetState:
    """A budget in Redis just after it was compared with the ledger: what Redis counts as spent,
    what is billed, and what had been billed before the request that triggered the comparison.

    For a minute Redis may forget what was not yet in the ledger of that request.
    """

    name: str
    spent: Spent
    billed: Spent
    billed_before: Spent

    @property
    def agrees(self) -> bool:
        bounds = zip(self.billed_before, self.spent, self.billed, strict=True)
        return all(least <= spent <= most for least, spent, most in bounds)


@dataclass(frozen=True, slots=True)
class Unseen:
    """How many steps of a request an agent may lose when it dies before journaling them: of a
    request that streams, and of one of which nothing is sent before its end."""

    streamed: int
    whole: int


@dataclass(slots=True)
class Leftovers:
    """What was still held when nothing ran any more and every lease had expired."""

    reservations: list[str] = field(default_factory=list)
    streams: dict[str, int] = field(default_factory=dict)
    """By scope: concurrency that is taken."""
    reserved: dict[str, int] = field(default_factory=dict)
    """By name of the budget."""
    engines: dict[str, int] = field(default_factory=dict)
    """By engine: requests that run or wait there."""
    drains_s: dict[str, float] = field(default_factory=dict)
    """How long each process took to stop; one that waits for a leaked stream says so in its log."""


PREFIX_DIGITS = 24
"""Leading digits of a line's id, which identify its batch."""


@dataclass(slots=True)
class Facts:
    """Everything known of a run."""

    events: list[Event] = field(default_factory=list)
    rollups: dict[Group, Sums] = field(default_factory=dict)
    months: dict[Group, Sums] = field(default_factory=dict)
    journal_sums: dict[str, JournalSums] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    """Every entry that was ever closed in a journal; several files may repeat one."""
    superseded: list[Entry] = field(default_factory=list)
    """In the ledger: attempts of which a higher one is billed."""
    journal_ends: list[JournalEnd] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    batches: list[BatchGot] = field(default_factory=list)
    prefixes: set[str] = field(default_factory=set)
    """Prefixes of the ids of batches' lines and of responses in the background, including those not
    in `batches`: a client may have sent one without learning of it."""
    responses: list[ResponseGot] = field(default_factory=list)
    in_background: set[str] = field(default_factory=set)
    """The ids of all responses in the background, without their prefix."""
    tunings: list[TuningGot] = field(default_factory=list)
    tuning_rows: dict[str, TuningRow] = field(default_factory=dict)
    """All fine-tuning jobs, by their ids."""
    trainings: list[Event] = field(default_factory=list)
    """The ledger's lines of fine-tuning jobs, which are not in `events`."""
    epoch_tokens: int = 0
    """Of each job's file; `training_price` is that of a token."""
    training_price: int = 0
    lives: list[Life] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    planned: list[Strike] = field(default_factory=list)
    prices: dict[tuple[int, str], tuple[int, int, int]] = field(default_factory=dict)
    """Prices in force, by tenant and adapter."""
    requests_per_minute: dict[int, int] = field(default_factory=dict)
    """Limits, by tenant."""
    degraded: list[tuple[float, float]] = field(default_factory=list)
    """When a gateway counted without Redis or refused without it; unix times in seconds."""
    unkept: dict[str, list[float]] = field(default_factory=dict)
    """By gateway: when it could not store or find the answer of an idempotency key."""
    compared: list[BudgetState] = field(default_factory=list)
    """After the run, compared with the ledger once more."""
    reseeded: list[BudgetState] = field(default_factory=list)
    """After Redis had lost them and they were read from the ledger again."""
    budgets: int = 0
    """Expected number."""
    leftovers: Leftovers = field(default_factory=Leftovers)
    moved: list[Moved] = field(default_factory=list)
    adopted: list[Adopted] = field(default_factory=list)
    only_gateways: bool = False
    """Nothing but gateways was killed."""
    stayed: set[str] = field(default_factory=set)
    """Ids of requests that had moved as often as allowed."""
    twins: list[Twin] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    """Log lines with an event of `logs.CRASHES`."""
    unseen: Unseen = Unseen(streamed=1, whole=1)

    def is_line(self, id: str) -> bool:
        """Whether this request is a line of a batch."""
        return id[:PREFIX_DIGITS] in self.prefixes
