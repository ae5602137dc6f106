"""Draining a gateway: streams may finish, and those that do not are logged."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

from gateway.planes.process import drain
from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from tests.inference.rig import rig
from tests.inference.samples import MODEL

BODY = {"model": MODEL.name, "messages": [{"role": "user", "content": "Hello"}], "stream": True}


async def test_a_stream_that_is_cut_short_is_logged(tmp_path: Path) -> None:
    engine = SyntheticEngine(MODEL, Behaviour(stall_after_tokens=1))
    async with rig(tmp_path, engine=engine) as made, made.gateway.client() as client:
        with capture_logs() as logs:
            async with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
                assert response.status_code == 200
                await drain(made.gateway.hub, 0.0)
            found = [log for log in logs if log["event"] == "drain_cut_short"]
            await drain(made.gateway.hub, 60.0)
    assert [log["requests"] for log in found] == [1]
    assert [log for log in logs if log["event"] == "drain_cut_short"] == found
