"""Chooses among given engines in one call."""

from __future__ import annotations

import random
from collections.abc import Iterable

from inference.gateway.routing import choice
from inference.gateway.routing.engine_state import EngineState, Needs
from inference.gateway.routing.engines import Engines


def choose(engines: Iterable[EngineState], needs: Needs, rng: random.Random | None = None) -> str:
    """The id of the engine that should get a request, of those that can do it.

    Raises:
        NoEngine: no engine can do it.
    """
    all = Engines(engines)
    return choice.choose(all.able(needs, all.revisions(needs)), needs, rng).id
