"""`python -m tests.labs.endpoint.plain_vllm serve MODEL`: plain `vllm serve`, on a CPU with our
fixes of its arithmetic (`inference/agent/engines/vllm/cpu.py`): without them a request for the
log-probabilities of its prompt ends the engine while it serves adapters.

Processes that vLLM spawns import this module again, and so have the fixes too.
"""

from __future__ import annotations

from inference.agent.engines.profile import is_cpu_build
from tests.labs.bench.sides import vllm_serve

if is_cpu_build():
    from inference.agent.engines.vllm import cpu

    cpu.install()

if __name__ == "__main__":
    vllm_serve.run()
