"""How many answers run and how much KV they hold. No engine, no loop: arithmetic.

Each choice of a request is a sequence (vLLM's `max_num_seqs`). Capacity is KV: a request holds its
prompt, what it has generated, and GROWTH_TOKENS for what each choice generates next (less, if it
may not generate as much). Reserving its `max_tokens` would leave most of the KV idle, because most
answers end earlier; if too many grow at once, vLLM preempts by `Queue.priority`. A prompt's cached
part counts in full: it is shared, but it has to be there.

A request larger than all of the KV runs alone.

Log-probabilities take time on the agent's event loop, which serves all streams: one engine step may
yield at most STEP_LOGPROBS. A request that asks for some takes as large a share of the sequences as
of these.

The last `reserved` sequences, and as large a share of the KV, are for tenants that have few
sequences, so that a newcomer finds room while a flood's long answers run. `Queue` decides which
those are. So at most `reserved / max_running` of the engine is left idle while others wait.
"""

from __future__ import annotations

from collections import Counter

from inference.link.workload import Workload

GROWTH_TOKENS = 64
"""vLLM allocates KV in blocks of 16 or 32 tokens: one may be partly empty, and one is next."""

STEP_LOGPROBS = 256
"""Over all running requests. Making and framing one takes about 45 us, most of it in vLLM."""


def growth(workload: Workload, generated: int) -> int:
    """How many more tokens a request is given room for, of which all choices together have
    `generated` some already."""
    choices, most = workload.choices, workload.max_tokens
    room = choices * GROWTH_TOKENS
    return room if most is None else min(room, max(0, choices * most - generated))


class Capacity:
    """The engine's running sequences and KV."""

    def __init__(self, *, max_running: int, kv_tokens: int, reserved: int) -> None:
        if not 0 <= reserved < max(1, max_running):
            raise ValueError(f"reserved={reserved} must be less than max_running={max_running}")
        self._max_running, self._kv_tokens = max_running, kv_tokens
        self.reserved = reserved
        self._kv_open = kv_tokens - kv_tokens * reserved // max(1, max_running)
        self._running: Counter[str] = Counter()
        self._total = 0
        self.kv_held = 0
        """Tokens; growth can take it over capacity, admission never does."""

    @property
    def open(self) -> int:
        """Sequences that are not reserved."""
        return self._max_running - self.reserved

    @property
    def open_logprobs(self) -> int:
        """The share of STEP_LOGPROBS that corresponds to `open`."""
        return STEP_LOGPROBS * self.open // max(1, self._max_running)

    def sequences(self, workload: Workload) -> int:
        """Sequences that a request takes: one for each choice, or more by its share of
        STEP_LOGPROBS."""
        choices, logprobs = workload.choices, workload.logprobs
        return max(choices, -(-choices * logprobs * self._max_running // STEP_LOGPROBS))

    def running(self, tenant: str) -> int:
        """Sequences that this tenant's requests take."""
        return self._running[tenant]

    def share(self, tenants: int) -> int:
        """Each tenant's share of the sequences among `tenants` and one more; at least one."""
        return max(1, self._max_running // (tenants + 1))

    def free(self, *, reserve: bool) -> bool:
        """Whether another sequence may run; `reserve`: it may use the reserve."""
        return self._total < self._limit(reserve=reserve)

    def fits(self, tokens: int, sequences: int, *, reserve: bool) -> bool:
        """Whether a request that takes `tokens` of KV and so many `sequences` may run."""
        if not self._total:
            return True
        kv_tokens = self._kv_tokens if reserve else self._kv_open
        limit = self._limit(reserve=reserve)
        return self.kv_held + tokens <= kv_tokens and self._total + sequences <= limit

    def start(self, tenant: str, tokens: int, sequences: int) -> None:
        """A request starts that takes this much."""
        self._running[tenant] += sequences
        self._total += sequences
        self.kv_held += tokens

    def finish(self, tenant: str, tokens: int, sequences: int) -> None:
        """A request that took this much has ended."""
        self._running[tenant] -= sequences
        if not self._running[tenant]:
            del self._running[tenant]
        self._total -= sequences
        self.kv_held -= tokens

    def _limit(self, *, reserve: bool) -> int:
        return self._max_running if reserve else self.open
