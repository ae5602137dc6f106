"""What became of requests, for people to read: counts by minute, and each refused request.

A gateway accumulates outcomes here and writes them to the database every few seconds
(`tenants.directory.outcomes`). No request waits for that, and a gateway that is killed loses the
last seconds. Bills come from engines' journals, not from here.

Every request to generate is counted. Requests of any kind that ended in an error are also kept one
by one, with their messages: per minute at most MAX_ALIKE of one API key and code, and MAX_KEPT of a
tenant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from inference.gateway.measuring.measures import FAILED, REFUSED
from inference.gateway.measuring.sums import BUCKETS, MeasureSums, added, bucket_of
from inference.operations.structure import StructureOutcome

MINUTE_S = 60
MAX_ALIKE = 20
MAX_KEPT = 60
MAX_GROUPS = 20_000
"""Groups in memory while the database is unavailable: about 20 MB."""
MAX_WAITING = 10_000
"""Refused requests in memory: about 10 MB."""
MAX_OBSERVATIONS = 20_000
"""Requests of splits in memory: about 6 MB."""


class OutcomeGroup(NamedTuple):
    """The key by which requests are counted together; a `version_id` of 0 means no adapter."""

    minute: int
    """Its beginning, a unix time in seconds."""
    tenant_id: int
    key_id: int
    version_id: int
    adapter: str
    base_model: str
    """Empty if the request was refused before it was known."""
    outcome: str
    code: str
    limit_kind: str
    limit_scope: str


SUMMED = (
    "requests", "prompt_tokens", "cached_tokens", "output_tokens", "cost", "conformed", "malformed",
    "unchecked", "decode_tokens", "decode_s",
)  # fmt: skip
"""The fields of `OutcomeSums` that are numbers."""


class OutcomeSums(msgspec.Struct):
    """Requests of one group. `cost` is in pico-units, as gateways see it. `first_tokens` counts
    requests by the bucket of their time to first token, `totals` counts completed ones by that of
    their total time; each is empty if there are none. `decode_tokens` were generated in `decode_s`,
    not counting the first token of each request. Of the requests whose answers should have had a
    structure (`operations.structure`), `conformed` had it, `malformed` did not, and `unchecked`
    were not checked."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    conformed: int = 0
    malformed: int = 0
    unchecked: int = 0
    decode_tokens: int = 0
    decode_s: float = 0.0
    first_tokens: list[int] = []
    totals: list[int] = []

    def add(self, other: OutcomeSums) -> None:
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_tokens = _added(self.first_tokens, other.first_tokens)
        self.totals = _added(self.totals, other.totals)


def _added(one: list[int], more: list[int]) -> list[int]:
    return added(one, more) if one and more else one or more


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A request that ended in an error. `started_at` is the unix time of its arrival, `total_s` how
    long it took; `version_id` is as in `OutcomeGroup`, `model` as its client wrote it."""

    id: str
    started_at: float
    tenant_id: int
    key_id: int
    version_id: int
    adapter: str
    base_model: str
    model: str
    surface: str
    outcome: str
    status: int
    code: str
    message: str
    limit_kind: str
    limit_scope: str
    total_s: float
    trace_id: str = ""


class SplitObservation(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a split (`interfaces.directory.SplitArm`) that was answered or failed.
    `ended_at` is a unix time in seconds."""

    request_id: str
    split_id: int
    candidate: bool
    key: int | None
    weight: int
    failed: bool
    cut: bool
    conforms: bool | None
    """Whether the answer has the structure that was asked for; None if none was, or it was not
    checked."""
    ttft_s: float | None
    ended_at: float


class TakenOutcomes(NamedTuple):
    """Outcomes to write to the database."""

    tallies: Mapping[OutcomeGroup, OutcomeSums]
    refusals: list[Refusal]
    observations: list[SplitObservation]


class EndedFigures(NamedTuple):
    """How a request ended, besides its group and its error; times in seconds from its admission."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    ttft_s: float | None = None
    total_s: float | None = None
    """Set for completed requests that an engine had."""
    structure: StructureOutcome | None = None


class Outcomes:
    """The outcomes of one gateway process, without those of the `uncounted` tenants."""

    def __init__(self, uncounted: Collection[str] = ()) -> None:
        self._uncounted = frozenset(uncounted)
        self._tallies: MeasureSums[OutcomeGroup, OutcomeSums] = MeasureSums(OutcomeSums)
        self._refusals: list[Refusal] = []
        self._observations: list[SplitObservation] = []
        self._minute = 0
        self._kept: Counter[tuple[int, int, str]] = Counter()
        """Refusals kept in this minute, by tenant, and by tenant, key and code."""
        self.dropped = 0
        """Requests neither counted nor kept, because there was no room."""

    def counts(self, tenant: str) -> bool:
        """Whether requests of the tenant of this name are counted."""
        return tenant not in self._uncounted

    def note(self, group: OutcomeGroup, ended: EndedFigures, refusal: Refusal | None) -> None:
        """A request ended; `refusal` is set if it ended in an error."""
        if group not in self._tallies and len(self._tallies) >= MAX_GROUPS:
            self.dropped += 1
            return
        tally = self._tallies.of(group)
        tally.requests += 1
        tally.prompt_tokens += ended.prompt_tokens
        tally.cached_tokens += ended.cached_tokens
        tally.output_tokens += ended.output_tokens
        tally.cost += ended.cost
        tally.conformed += ended.structure == StructureOutcome.CONFORMED
        tally.malformed += ended.structure == StructureOutcome.MALFORMED
        tally.unchecked += ended.structure == StructureOutcome.UNCHECKED
        _time(tally, ended)
        if refusal is not None:
            self.keep(group, refusal)

    def keep(self, group: OutcomeGroup, refusal: Refusal) -> None:
        """Keep a refused or failed request without counting it, if there is room."""
        if group.outcome not in (REFUSED, FAILED):
            return
        if group.minute != self._minute:
            self._minute = group.minute
            self._kept.clear()
        whose, alike = (group.tenant_id, 0, ""), (group.tenant_id, group.key_id, group.code)
        room = self._kept[whose] < MAX_KEPT and self._kept[alike] < MAX_ALIKE
        if room and len(self._refusals) < MAX_WAITING:
            self._kept.update((whose, alike))
            self._refusals.append(refusal)

    def observe(self, observation: SplitObservation) -> None:
        """Keep what became of a request of a split, if there is room."""
        if len(self._observations) < MAX_OBSERVATIONS:
            self._observations.append(observation)
        else:
            self.dropped += 1

    def take(self) -> TakenOutcomes:
        """Return all outcomes, and start anew."""
        refusals, self._refusals = self._refusals, []
        observations, self._observations = self._observations, []
        return TakenOutcomes(self._tallies.take(), refusals, observations)

    def give_back(
        self,
        tallies: Iterable[tuple[OutcomeGroup, OutcomeSums]],
        refusals: Iterable[Refusal],
        observations: Iterable[SplitObservation] = (),
    ) -> None:
        """Take back outcomes that could not be written, as far as there is room."""
        for group, tally in tallies:
            if group in self._tallies or len(self._tallies) < MAX_GROUPS:
                self._tallies.of(group).add(tally)
            else:
                self.dropped += tally.requests
        self._refusals = [*refusals, *self._refusals][:MAX_WAITING]
        self._observations = [*observations, *self._observations][:MAX_OBSERVATIONS]


def _time(tally: OutcomeSums, ended: EndedFigures) -> None:
    if ended.ttft_s is not None:
        tally.first_tokens = tally.first_tokens or [0] * BUCKETS
        tally.first_tokens[bucket_of(ended.ttft_s)] += 1
    if ended.total_s is not None:
        tally.totals = tally.totals or [0] * BUCKETS
        tally.totals[bucket_of(ended.total_s)] += 1
        if ended.ttft_s is not None and ended.output_tokens > 1 and ended.total_s > ended.ttft_s:
            tally.decode_tokens += ended.output_tokens - 1
            tally.decode_s += ended.total_s - ended.ttft_s
