"""Tries on a started engine what vLLM's source can't show; see `reliances.py`.

Two short prompts on the full path: do the chunks come with the ids of their tokens, and can the
answer be continued from its middle as if no other engine had begun it? A few steps of the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from uuid import uuid4

from inference.agent.engines.engine import EngineOutput, EngineWork, Meter
from inference.agent.engines.vllm.reliances import Part
from inference.link.accounts import Usage
from inference.link.wire import Resume
from inference.operations.completion import COMPLETION

log = logging.getLogger(__name__)

PROMPTS = [[1, 2, 3], [3, 2, 1]]
TOKENS, GIVEN = 4, 2
"""Tokens of each answer, and those of them that "another engine" generated."""
TIMEOUT_S = 120.0
"""A large model's first steps are slow; nothing at all comes if an iteration is never observed."""

Ids = dict[int, list[int]]
Generate = Callable[[EngineWork], AsyncGenerator[EngineOutput, None]]


async def failing(generate: Generate) -> set[Part]:
    """The parts that don't work on the engine with this `Engine.generate`."""
    whole = await _ids(generate, None)
    if not _complete(whole, TOKENS):
        return {Part.TOKEN_IDS, Part.RESUME}
    begun = {choice: ids[:GIVEN] for choice, ids in whole.items()}
    rest = await _ids(generate, begun)
    return set() if _complete(rest, TOKENS - GIVEN) else {Part.RESUME}


def _complete(found: Ids, tokens: int) -> bool:
    lengths = {choice: len(ids) for choice, ids in found.items()}
    if complete := lengths == dict.fromkeys(range(len(PROMPTS)), tokens):
        return complete
    log.warning("the self-check expected %d tokens of each answer, and got %s", tokens, found)
    return False


async def _ids(generate: Generate, begun: Ids | None) -> Ids:
    """The tokens of an answer by choice, as far as it came; none if chunks came without them."""
    work = EngineWork(
        id=f"selfcheck-{uuid4().hex}",
        operation=COMPLETION,
        body={
            "prompt": PROMPTS,
            "max_tokens": TOKENS,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        },
        model="selfcheck",
        salt="selfcheck",
        wants_ids=True,
    )
    if begun is not None:
        prompt_tokens, tokens = sum(map(len, PROMPTS)), sum(map(len, begun.values()))
        work.resume = Resume(begun, {}, Usage(prompt_tokens, 0, tokens))
        work.meter = Meter(prompt_tokens, 0, tokens)
    found: Ids = {}
    together = False
    try:
        async with asyncio.timeout(TIMEOUT_S), aclosing(generate(work)) as outputs:
            async for output in outputs:
                together |= bool(output.ids and output.chunks)
                for choice, ids in output.ids.items():
                    found.setdefault(choice, []).extend(ids)
    except Exception as error:
        log.warning("the self-check failed", exc_info=error)
    return found if together else {}
