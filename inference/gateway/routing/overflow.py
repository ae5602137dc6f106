"""Which requests may go to overflow engines, when, and how much of them a day. No IO, no clock.

An overflow engine (`ModelInfo.overflow`) sends prompts to a server outside of the installation, for
what the installation's own engines are too busy for.

Rules
    1. A request may go there only if its tenant allows that its prompts leave the installation, if
       it is for the base model itself, and if it is not batch work (`AdmittedRequest.overflows`).
    2. It goes there if every own engine that could take it expects it to wait for more than
       `wait_s`, or has refused it as full; or after it has waited `wait_s`, in the queue of an own
       engine or for one at the gateway.
    3. It goes only before any engine has begun it. What an own engine has begun never moves to an
       overflow engine, and what an overflow engine has begun moves nowhere: own engines are of
       other revisions (`ModelInfo.pool_digest`).
    4. All overflow engines together get a number of tokens a day. The ledger counts what has ended;
       each gateway adds what it has running there. While the ledger's count is not known, or is
       older than KNOWN_S, they get nothing.

Times are monotonic, in seconds.
"""

from __future__ import annotations

import math
from collections import Counter

from inference.gateway.routing.engine_state import OUTPUT_TOKENS
from inference.link.session import AttemptKey
from inference.link.workload import Workload

KNOWN_S = 30.0
"""A few times as long as gateways take to follow the ledger's count."""


class Overflow:
    """The state of one gateway. Call `note_left` with each count of the ledger, `sent` and `ended`
    for each attempt on an overflow engine."""

    def __init__(self, wait_s: float = 10.0) -> None:
        self.wait_s = wait_s
        self.requests = Counter[str]()
        """Attempts that were sent to overflow engines, by base model."""
        self._left, self._known_until = 0, -math.inf
        self._open: dict[AttemptKey, int] = {}
        """Expected tokens of the attempts that this gateway has on overflow engines."""

    def note_left(self, left_tokens: int, now: float) -> None:
        """By the ledger's count so many tokens are left of the day's."""
        self._left, self._known_until = left_tokens, now + KNOWN_S

    def is_due(self, waited_s: float) -> bool:
        """Whether a request has waited long enough for the installation's own engines."""
        return waited_s >= self.wait_s

    def has_room(self, workload: Workload, now: float) -> bool:
        """Whether a request of this size may still go to an overflow engine today (rule 4)."""
        if now >= self._known_until:
            return False
        return sum(self._open.values()) + expected_tokens(workload) <= self._left

    def sent(self, attempt: AttemptKey, base_model: str, workload: Workload) -> None:
        """An overflow engine got this attempt."""
        self.requests[base_model] += 1
        self._open[attempt] = expected_tokens(workload)

    def ended(self, attempt: AttemptKey) -> None:
        """An attempt has ended, on whatever engine it was."""
        self._open.pop(attempt, None)


def expected_tokens(workload: Workload) -> int:
    """The tokens of a request: its prompt, and its answer if that is as long as it may be."""
    most = OUTPUT_TOKENS if workload.max_tokens is None else workload.max_tokens
    return workload.prompt_tokens + workload.choices * most
