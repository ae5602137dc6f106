"""The environment variables of a fast start on a CPU, set when this module is imported.

Import it before vLLM or torch: both read some of these while they are imported. A variable that is
already set is left alone. With the CUDA build nothing is set.
"""

from __future__ import annotations

import os

from inference.agent.engines.profile import is_cpu_build
from inference.agent.engines.vllm.causes import CONFIG

ON_CPU = {
    # AsyncLLM refuses the `uni` executor without it; the multiprocess one busy-waits on a core.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # One thread: with two the engine core and its front end compete for two cores.
    "OMP_NUM_THREADS": "1",
    # Speculation uses several threads all the same. Waiting for each other they would occupy the
    # cores: beside other load, tokens then take several times as long.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    # Else the first request with log-probabilities compiles for twenty seconds.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}

EVERYWHERE = {
    # Which models are served here stays private.
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}

# vLLM's log lines reach our own handler, and are structured like the rest.
LOGGING = {"VLLM_CONFIGURE_LOGGING": "1", "VLLM_LOGGING_CONFIG_PATH": str(CONFIG)}


def prepare() -> None:
    """Set the variables that are not set yet."""
    for name, value in (EVERYWHERE | (ON_CPU if is_cpu_build() else {})).items():
        os.environ.setdefault(name, value)
    if not LOGGING.keys() & os.environ.keys():
        os.environ.update(LOGGING)


prepare()
