"""A gateway and an agent that serve every operation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inference.agent.engines.synthetic.engine import SyntheticEngine
from tests.inference.gateway.operations.every import WITH_ECHO
from tests.inference.rig import Rig, agent_on, gateway
from tests.inference.samples import MODEL


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    engine = SyntheticEngine(MODEL)
    async with gateway(operations=WITH_ECHO) as one:
        async with agent_on(engine, tmp_path, [one], operations=WITH_ECHO, max_running=1) as made:
            yield made
    await engine.close()
