"""Which prompts prefill engines compute for decode engines, and what they hand over. No IO, no
clock.

A pool may have two kinds of engines besides those that do both: prefill engines only compute
prompts, and decode engines fetch these and give the answers (`ModelInfo.role`). A long prompt then
holds up nobody's next token.

Rules
    1. A request whose engine would be a decode engine goes to a prefill engine of the same
       `PoolRevision` first, as an attempt of its own, if that decode engine would have to compute
       `tokens` of its prompt or more. It must have one prompt and one choice, and its body must be
       kept, because it goes to another engine next.
    2. That attempt has no reader: it generates nothing, and counts the prompt. The next one, on a
       decode engine of that revision, continues its usage, so the prompt is billed once.
    3. A request goes to a prefill engine once. If that refuses it, fails, is lost, or has not
       computed the prompt after `wait_s`, the next engine computes the prompt itself.
    4. What is handed over is used once, by the attempt that follows, and not after the prefill
       engine may have freed it: its time runs from when the prompt was sent there.

Times are monotonic, in seconds.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import msgspec

from inference.gateway.routing.engine_state import EngineState
from inference.link.accounts import Usage
from inference.link.engine_info import DECODE
from inference.link.prefixes import Prefix
from inference.link.wire import Handover
from inference.link.workload import Workload

HANDED_OVER = "handed_over"


class KeptPrompt(NamedTuple):
    """A prompt that a prefill engine keeps `until` then, for engines of this `pool`."""

    handover: Handover
    pool: str
    until: float

    @classmethod
    def of(
        cls, handover: Handover, usage: Usage, engine: EngineState, sent_at: float
    ) -> KeptPrompt:
        """What this engine handed over of a prompt that was sent to it at that time."""
        prompt_only = msgspec.structs.replace(usage, completion_tokens=0, reasoning_tokens=0)
        handover = msgspec.structs.replace(handover, usage=prompt_only)
        return cls(handover, engine.pool, sent_at + handover.valid_s)

    def suits(self, engine: EngineState) -> bool:
        """Whether this engine can fetch it."""
        return engine.info.role == DECODE and engine.pool == self.pool

    def given(self, engine: EngineState, now: float) -> Handover | None:
        """What this engine is sent of it; None if it can't fetch it, or not any longer."""
        if not self.suits(engine) or now >= self.until:
            return None
        return msgspec.structs.replace(self.handover, valid_s=self.until - now)


class PrefillPolicy:
    """When prompts are computed elsewhere, and how often that was tried. `ended` is called for each
    attempt on a prefill engine."""

    def __init__(self, tokens: int = 2048, wait_s: float = 20.0) -> None:
        """`tokens`: the shortest part of a prompt for which it is worth it."""
        self.tokens, self.wait_s = tokens, wait_s
        self.prompts = Counter[tuple[str, str]]()
        """Prompts sent to prefill engines, by base model and outcome: HANDED_OVER, or why the next
        engine had to compute it."""

    def wants(self, workload: Workload, prefix: Prefix | None, engine: EngineState) -> bool:
        """Whether a prefill engine should compute this prompt for this engine."""
        if engine.info.role != DECODE or workload.prompts != 1 or workload.choices != 1:
            return False
        return engine.uncached(workload, prefix) >= self.tokens

    def ended(self, engine: EngineState, outcome: str) -> None:
        """An attempt on this prefill engine has ended."""
        self.prompts[engine.info.name, outcome] += 1
