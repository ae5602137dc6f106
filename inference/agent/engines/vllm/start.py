"""Starts vLLM: from an engine profile to an `AsyncLLM` whose core runs.

On a CPU the core is forked: it inherits the imports of this process (ten seconds of them) and the
patches of `patches.py`. With CUDA vLLM chooses how it starts its processes.
"""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from vllm.config import ModelConfig, VllmConfig
from vllm.config.kv_events import KVEventsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerBase
from vllm.v1.metrics.stats import SchedulerStats

from inference.agent.engines.profile import BadProfile, EngineProfile
from inference.agent.engines.revision import revision_of
from inference.agent.engines.shapes import adaptable_shapes, on_meta
from inference.agent.engines.vllm import handover, patches
from inference.agent.engines.vllm.reliances import Part
from inference.agent.engines.vllm.worker import EXTENSION

log = logging.getLogger(__name__)


class LoadOptions(StatLoggerBase):  # type: ignore[misc]  # vLLM is untyped here
    """The engine core's own counts, as it last reported them."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.running = self.waiting = 0
        self.kv_usage = 0.0
        self.drafted = self.accepted = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Called by vLLM after each step."""
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.waiting = scheduler_stats.num_waiting_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
            if (speculation := scheduler_stats.spec_decoding_stats) is not None:
                self.drafted += speculation.num_draft_tokens
                self.accepted += speculation.num_accepted_tokens

    def log_engine_initialized(self) -> None:
        """Nothing to log."""


def start_llm(
    profile: EngineProfile, kv_events: dict[str, Any]
) -> tuple[AsyncLLM, LoadOptions, set[Part]]:
    """Start vLLM; blocks until its core is ready. Call it outside the event loop's thread. The set
    has the parts that this vLLM can't have.

    Inside that thread AsyncLLM would start its output handler at once, with statistics on, which
    cost half as much again per token; here they are first reduced to the core's own counts.
    `kv_events` says where vLLM publishes what its prefix cache holds.

    Raises:
        BadProfile: vLLM doesn't take a setting.
        RuntimeError: Lorikeet can't work with this vLLM.
    """
    args = engine_args(profile)
    if current_platform.is_cpu() and profile.devices > 1:
        _divide_cores(profile.devices)
    lacking = patches.install()
    if profile.role and Part.HANDOVER in lacking:
        raise BadProfile(f"kv_role can't be set with this vLLM. {Part.HANDOVER.value}")
    if profile.role:
        handover.prepare(args.kv_transfer_config)
    if Part.CACHE_EVENTS not in lacking:
        args.kv_events_config = KVEventsConfig(**kv_events)
    config = args.create_engine_config()
    if current_platform.is_cpu():
        # After create_engine_config, which forces spawn.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    loads: list[LoadOptions] = []

    def observe(vllm_config: VllmConfig, engine_index: int) -> LoadOptions:
        loads.append(LoadOptions(vllm_config, engine_index))
        return loads[-1]

    llm = AsyncLLM.from_vllm_config(config, stat_loggers=[observe], disable_log_stats=True)
    llm.log_stats = llm.output_processor.log_stats = False
    # vLLM adds a Prometheus logger unasked, at a tenth of a millisecond per step.
    loggers = llm.logger_manager.stat_loggers
    loggers[:] = [each for each in loggers if not isinstance(each, PrometheusStatLogger)]
    return llm, loads[0], lacking


def _divide_cores(devices: int) -> None:
    """Give each of the engine's processes its share of the cores; vLLM by itself only takes whole
    NUMA nodes, of which most machines have one.

    Raises:
        BadProfile: there are too few.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < devices:
        raise BadProfile(f"the engine needs {devices} cores: there are {len(cores)}")
    shares = [cores[i::devices] for i in range(devices)]
    bound = "|".join(",".join(map(str, share)) for share in shares)
    given = {"VLLM_CPU_OMP_THREADS_BIND": bound} | dict(os.environ)
    os.environ |= given | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


def model_revision(config: ModelConfig, profile: EngineProfile) -> str:
    """The digest of the files that vLLM loaded; empty if they are in no folder of this host."""
    try:
        model = _folder(config.model, config.revision)
        tokenizer = _folder(config.tokenizer, config.tokenizer_revision)
        return revision_of(model, tokenizer, profile.chat_template, profile.changing)
    except (OSError, ValueError) as error:  # such as a model that is streamed from elsewhere
        log.warning("the model's files have no digest: %s", error)
        return ""


def _folder(name: str, revision: str | None) -> Path:
    """The folder of a local model, or of one that was fetched from Hugging Face."""
    if Path(name).is_dir():
        return Path(name)
    return Path(snapshot_download(name, revision=revision, local_files_only=True))


def engine_args(profile: EngineProfile) -> AsyncEngineArgs:
    """The profile as vLLM's engine arguments.

    Raises:
        BadProfile: `extra` names a field that vLLM doesn't have, or vLLM refuses a value.
    """
    if unknown := sorted(set(profile.extra) - {f.name for f in fields(AsyncEngineArgs)}):
        raise BadProfile(f"extra contains {', '.join(unknown)}, which vLLM does not support")
    extra = dict(profile.extra)
    if profile.role:
        extra["kv_transfer_config"] = handover.transfer_config(extra["kv_transfer_config"])
    ours: dict[str, Any] = {
        "model": profile.model,
        "served_model_name": [profile.name],
        "runner": profile.runner,
        "dtype": profile.dtype,
        "max_model_len": profile.max_model_len,
        "enable_lora": True,
        "max_loras": profile.max_loras,
        "max_cpu_loras": profile.loaded_adapters,
        "max_lora_rank": profile.max_lora_rank,
        "max_num_seqs": profile.max_num_seqs,
        "max_num_batched_tokens": profile.max_num_batched_tokens,
        "kv_cache_memory_bytes": profile.kv_cache_memory_bytes,
        "tensor_parallel_size": profile.tensor_parallel_size,
        "pipeline_parallel_size": profile.pipeline_parallel_size,
        "quantization": profile.quantization,
        "speculative_config": profile.speculation,
        "reasoning_parser": profile.reasoning_parser,
        "enforce_eager": profile.enforce_eager,
        "block_size": profile.block_size,
        "distributed_executor_backend": profile.executor,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        "worker_extension_cls": EXTENSION,
        "disable_log_stats": True,
    }
    return AsyncEngineArgs(**{k: v for k, v in ours.items() if v is not None}, **extra)


def adapter_modules(config: ModelConfig, wrapped: list[str]) -> dict[str, tuple[int, int]]:
    """The modules of `wrapped` (vLLM's paths) that an adapter may target, with their shapes."""
    shapes = adaptable_shapes(*on_meta(config.hf_config))
    return {name: shapes[name] for name in wrapped if name in shapes}
