"""Decides which of our patches this vLLM gets, and installs them.

Processes forked afterwards are patched too. On a GPU vLLM may spawn its processes instead: those
are asked whether they are patched (`worker.py`).
"""

from __future__ import annotations

import logging

from vllm import __version__
from vllm.platforms import current_platform

from inference.agent.engines.vllm.reliances import TESTED, Part, ReleaseSource, missing

log = logging.getLogger(__name__)


def install(source: ReleaseSource | None = None) -> set[Part]:
    """Patch this process; may be called again. Returns the parts that this vLLM can't have, of
    which an operator is told. `source`: that of vLLM, if not the installed one's.

    Raises:
        RuntimeError: it lacks a name without which an engine doesn't start.
    """
    if __version__.partition("+")[0] not in TESTED:
        log.warning("vLLM %s is not one of the tested releases: %s", __version__, ", ".join(TESTED))
    is_cpu = bool(current_platform.is_cpu())
    lacking = missing(source or ReleaseSource.installed())
    for part, names in lacking.items():
        sentence = f"vLLM {__version__} lacks {', '.join(map(str, names))}. {part.value}"
        if part is Part.ANSWERS or (part is Part.CPU and is_cpu):
            raise RuntimeError(sentence)
        log.warning("%s", sentence)
    # Imported only if they are used: what they import may be what is missing.
    if Part.RESUME not in lacking:
        from inference.agent.engines.vllm import resume

        resume.install()
    if is_cpu:
        from inference.agent.engines.vllm import cpu

        cpu.install()
    return set(lacking)
