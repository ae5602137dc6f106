"""`python -m tests.labs.bench.machinery.roomy_engine`: a synthetic engine whose KV cache holds
thousands of streams.

Takes the options of `manage.py engine`.
"""

from __future__ import annotations

import argparse

import msgspec

from inference.agent.__main__ import main
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.synthetic.engine import SyntheticEngine

KV_TOKENS = 1 << 22


async def start(options: argparse.Namespace, profile: EngineProfile) -> SyntheticEngine:
    """The synthetic engine for these options, with the larger KV cache."""
    engine = SyntheticEngine.of(profile, tokens_per_second=options.tokens_per_second or None)
    engine.info = msgspec.structs.replace(engine.info, kv_tokens=KV_TOKENS)
    return engine


if __name__ == "__main__":
    main(start=start)
