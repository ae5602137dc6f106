"""Starts engines with a profile in a process of their own, and makes the proof of what they did."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import msgspec

from inference.agent import runtime_folder
from inference.agent.__main__ import parsed, profile_of
from inference.agent.engines.engine import EngineNotStarted, LocalAdapter
from inference.agent.engines.profile import BadProfile, EngineProfile
from inference.agent.engines.profiles.hardware import Hardware
from inference.agent.engines.profiles.named import NamedProfile, named
from inference.agent.engines.profiles.proofs import ProfileProof, versions
from inference.agent.profile_check.comparing import compared
from inference.agent.profile_check.observing import ProfileObservations, observe
from inference.content import CONFIG, WEIGHTS, digest_of
from inference.errors import InferenceError
from inference.link.engine_info import AdapterRef
from inference.process import logs

PLAIN = "plain"
ROUNDING = {"quantization", "kv_cache_dtype"}
"""Settings under which numbers can't be those of plain."""


@dataclass(slots=True)
class ProfileChecker:
    """Checks profiles one after another; plain is observed once in each dtype. `options` are
    further ones of `manage.py engine`, for plain and for each profile."""

    model: Path
    model_name: str
    adapters: Mapping[str, Path]
    options: list[str] = field(default_factory=list)
    _plain: dict[str, ProfileObservations] = field(default_factory=dict)
    """By dtype; empty: vLLM's choice."""

    def check(self, name: str) -> ProfileProof:
        """Start engines with the profile, and with plain unless that ran; takes about a minute
        each.

        Raises:
            BadProfile: there is no such profile, or it is not valid.
        """
        profile, hardware = named(name), Hardware.here()
        skipped, plain, own, faults = "", None, None, list[str]()
        try:
            profile.require(hardware, self.model)
            plain = self._plain_in("")
            own = plain if name == PLAIN else self._observed(name)
        except BadProfile as error:
            skipped = str(error)
        except (EngineNotStarted, BrokenProcessPool) as error:
            faults = [str(error)]
        proof = ProfileProof(
            profile=profile.name, digest=profile.digest, promise=profile.promise,
            date=datetime.now(UTC).isoformat(timespec="seconds"), model=self.model_name,
            hardware=hardware.kind, versions=versions(), skipped=skipped, faults=faults,
        )  # fmt: skip
        if own is None or plain is None:
            return proof
        found = compared(profile, plain, own)
        return msgspec.structs.replace(
            proof, faults=[*found.faults, *self._without_effect(profile, own)],
            equal=found.equal, answers=found.answers, largest=found.largest, mean=found.mean,
            plain=plain.side, measured=own.side,
        )  # fmt: skip

    def _without_effect(self, profile: NamedProfile, own: ProfileObservations) -> Iterator[str]:
        """What the profile says to round, but doesn't: vLLM quantises only some kinds of layers,
        and says nothing where a model has none of them."""
        if not (rounding := ROUNDING & profile.vllm.keys()):
            return
        dtype = profile.vllm.get("dtype", "")
        if self._plain_in(dtype).logprobs == own.logprobs:
            as_plain = f"as with plain in {dtype}" if dtype else "as with plain"
            yield f"{' and '.join(sorted(rounding))} has no effect: all numbers are {as_plain}"

    def _plain_in(self, dtype: str) -> ProfileObservations:
        if dtype not in self._plain:
            self._plain[dtype] = self._observed(PLAIN, *(("--dtype", dtype) if dtype else ()))
        return self._plain[dtype]

    def _observed(self, name: str, *more: str) -> ProfileObservations:
        arguments = ["--model", str(self.model), "--profile", name, *self.options, *more]
        settings = profile_of(parsed(arguments))
        # A process of its own: vLLM leaves patches and environment variables behind.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            work = (settings, dict(self.adapters), named(name).place.engines)
            return pool.submit(_observe, *work).result()


def _observe(
    settings: EngineProfile, adapters: dict[str, Path], number: int
) -> ProfileObservations:
    logs.configure("check_profile", "error")
    with tempfile.TemporaryDirectory() as folder, runtime_folder.used(Path(folder)):
        return asyncio.run(_started(settings, adapters, number))


async def _started(
    settings: EngineProfile, adapters: dict[str, Path], number: int
) -> ProfileObservations:
    from inference.agent.engines.vllm.engine import VLLMEngine

    began, engines = time.monotonic(), list[VLLMEngine]()
    try:
        for _ in range(number):
            engines.append(await VLLMEngine.start(settings))
        ready_s = (time.monotonic() - began) / number
        return await observe(engines, _local(adapters), ready_s)
    except InferenceError as error:
        raise EngineNotStarted(f"the engine failed: {error}") from error
    finally:
        for engine in engines:
            await engine.close()


def _local(adapters: dict[str, Path]) -> dict[str, LocalAdapter]:
    return {
        name: LocalAdapter(
            AdapterRef(f"check/{name}@{_digest(folder)[:12]}", _digest(folder)), i, folder
        )
        for i, (name, folder) in enumerate(adapters.items(), start=1)
    }


def _digest(folder: Path) -> str:
    config, weights = (
        hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (CONFIG, WEIGHTS)
    )
    return digest_of(config, weights)
