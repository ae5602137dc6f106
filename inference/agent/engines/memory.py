"""Shares out a machine's memory to an engine without a GPU: weights, adapters and KV cache.

vLLM's own default without a GPU is half of the machine's memory, touched at the start, and it
refuses to start if one context of the model's full length does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inference.agent.engines.profile import BadProfile

USUAL_TOKENS, USUAL_SEQUENCES = 1024, 16
"""The KV cache is made for so many sequences of this length at once."""
CONTEXT_SHARE = 1 / 3
"""It is made larger for one sequence of the model's full length if that takes no more than this of
what weights and adapters leave."""
LEAST_KV_BYTES = 256 << 20
LEAST_CONTEXT = 1024
"""Tokens; an engine with a shorter context than this and the model's own does not start."""
PROCESS_BYTES = 1 << 30
"""What an engine needs besides: its programs, and what it computes with."""
SHARE = 0.9
"""How much of the memory that is free may be used."""
PLENTY = 1 << 60
"""Control groups without a limit have a number beyond this."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a model needs with one dtype, in bytes; `context` is its own, in tokens."""

    dtype: str
    weights: int
    adapters: int
    kv_token: int
    context: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The KV cache's size in bytes, and the longest prompt and answer together, in tokens."""

    kv_bytes: int
    context: int
    notice: str
    """Why the context is not the model's own; empty if it is."""


class DoesNotFit(BadProfile):
    """The model needs more memory than there is."""


def plan(
    model: ModelMemory, free: int, block: int, kv_bytes: int | None, context: int | None
) -> MemoryPlan:
    """Share out `free` bytes. `block` is the size of the KV cache's blocks in tokens; `kv_bytes`
    and `context` are what the operator asked for, if anything.

    Raises:
        DoesNotFit: the model with what was asked for, or with a short context, does not fit.
        BadProfile: the context that was asked for needs more than `kv_bytes`.
    """
    wanted = context or model.context
    room = int(SHARE * free) - PROCESS_BYTES - model.weights - model.adapters
    whole = (wanted + block) * model.kv_token
    longest = wanted if context or whole <= CONTEXT_SHARE * room else 0
    usual = max(USUAL_SEQUENCES * USUAL_TOKENS, longest)
    given = kv_bytes or min(max(LEAST_KV_BYTES, (usual + block) * model.kv_token), room)
    # One block is vLLM's own.
    tokens = given // model.kv_token - block if model.kv_token else wanted
    least = context or min(LEAST_CONTEXT if kv_bytes is None else block, wanted)
    if not 0 < given <= room or (kv_bytes is None and tokens < least):
        raise DoesNotFit(_sum(model, free, least, kv_bytes or least * model.kv_token))
    if tokens < least:
        raise BadProfile(
            f"kv_bytes is {given}: a context of {least:,} tokens needs "
            f"{(least + block) * model.kv_token} as {model.dtype}"
        )
    if tokens >= wanted:
        return MemoryPlan(given, wanted, "")
    cut = tokens // block * block
    notice = f"Context {cut:,} of {wanted:,} tokens: --kv-bytes {_gib(whole)}G for all of it."
    return MemoryPlan(given, cut, notice)


def _sum(model: ModelMemory, free: int, context: int, cache: int) -> str:
    needed = model.weights + model.adapters + PROCESS_BYTES + cache
    return (
        f"the model does not fit: it needs {_gib(needed)} GiB of memory as {model.dtype} (weights "
        f"{_gib(model.weights)}, adapters {_gib(model.adapters)}, KV cache {_gib(cache)} for at "
        f"least {context:,} tokens, the process {_gib(PROCESS_BYTES)}), but may use "
        f"{_gib(SHARE * free)} GiB here"
    )


def _gib(size: float) -> str:
    """Rounded up, so that what was asked for with this number is enough."""
    return f"{-(-size * 10 // (1 << 30)) / 10:g}"


# --- What is free --------------------------------------------------------------------------------


def free_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process may still use: the machine's, or less in a control group."""
    return min(_of_machine(proc), *_of_groups(proc, groups))


def _of_machine(proc: Path) -> int:
    facts = _numbers(proc / "meminfo")
    return facts["MemAvailable:"] << 10


def _of_groups(proc: Path, groups: Path) -> Iterator[int]:
    """What each control group with a limit that this process is in leaves it."""
    yield PLENTY
    for line in (proc / "self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names, top = ("memory.max", "memory.current", "inactive_file"), groups
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            top = groups / "memory"
        else:
            continue
        # In a container the path may be the host's, and its own group is the top.
        own = Path(path.lstrip("/"))
        for folder in (top / own, *(top / parent for parent in own.parents)):
            yield from _of_group(folder, *names)


def _of_group(folder: Path, limit_file: str, usage_file: str, reclaimable: str) -> Iterator[int]:
    try:
        limit = int((folder / limit_file).read_text())
        used = int((folder / usage_file).read_text())
        cached = _numbers(folder / "memory.stat").get(reclaimable, 0)
    except (OSError, ValueError):  # there is no such group here, or it has no limit ("max")
        return
    if limit < PLENTY:
        yield max(0, limit - used + cached)


def _numbers(file: Path) -> dict[str, int]:
    """The second word of each line, a number, by the first."""
    words = (line.split() for line in file.read_text().splitlines())
    return {name: int(number) for name, number, *_ in words}
