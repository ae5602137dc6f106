"""Random answers that xgrammar allows, without a model: each byte is a token."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xgrammar

STOP = 256
SOON = 60
"""Bytes after which an answer ends as soon as it can."""
MAX_BYTES = 3_000
_CLOSING = b'"}]'
_LIKELY = b'",:{}[]0123456789-.abxyz\\u\xc3\xf0'


@cache
def _compiler() -> xgrammar.GrammarCompiler:
    import xgrammar

    vocabulary = [bytes([byte]) for byte in range(256)] + [b"</s>"]
    tokens = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[STOP])
    return xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)


def accepts(grammar: xgrammar.Grammar, text: str) -> bool:
    """Whether it allows this answer."""
    from xgrammar.testing import _is_grammar_accept_string

    return bool(_is_grammar_accept_string(grammar, text))


def grammar_of(schema: Any) -> xgrammar.Grammar:
    """The grammar that an engine gets for a schema."""
    import xgrammar

    from inference.agent.engines.vllm.grammars import TAG, for_engine

    return xgrammar.Grammar.from_structural_tag(for_engine(TAG % json.dumps(schema)))


def walk(grammar: xgrammar.Grammar, random: Random) -> bytes | None:
    """An answer that finished, None if it became too long."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(_compiler().compile_grammar(grammar))
    mask = xgrammar.allocate_token_bitmask(1, STOP + 1)
    answer = bytearray()
    while len(answer) < MAX_BYTES:
        matcher.fill_next_token_bitmask(mask)
        words = mask[0].tolist()
        allowed = [token for token in range(STOP + 1) if words[token // 32] >> token % 32 & 1]
        token = _chosen(allowed, random, ends=len(answer) > SOON)
        if token == STOP:
            return bytes(answer)
        assert matcher.accept_token(token)
        answer.append(token)
    return None


def _chosen(allowed: list[int], random: Random, *, ends: bool) -> int:
    if STOP in allowed and (ends or len(allowed) == 1 or random.random() < 0.5):
        return STOP
    allowed = [token for token in allowed if token != STOP]
    closing = [token for token in allowed if token in _CLOSING]
    if ends and closing:
        return random.choice(closing)
    likely = [token for token in allowed if token in _LIKELY]
    if likely and random.random() < 0.8:
        return random.choice(likely)
    return random.choice(allowed)
