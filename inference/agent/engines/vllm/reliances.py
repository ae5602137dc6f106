"""What Lorikeet relies on inside vLLM beyond its documents: one table, checked at each start.

vLLM's releases change these without notice. Each entry is a function that is replaced or called, or
an attribute that is read or set, and says which part of Lorikeet needs it. The check reads vLLM's
source and imports nothing, so that a test can read a release that can't run on the machine. What
the source can't show (how the functions behave) is tried once on the started engine
(`selfcheck.py`).

If an entry that a `Part` needs is missing, that part is left out and the engine serves without it;
only for `Part.ANSWERS`, and on a CPU for `Part.CPU`, it doesn't start.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

TESTED = ("0.32.0", "0.33.0")
"""Releases of vLLM whose source agrees with the table."""


class Part(Enum):
    """A part of Lorikeet that relies on vLLM's inner working. The value tells an operator what an
    engine without it can't do."""

    ANSWERS = "It cannot answer."
    CPU = "It cannot keep adapters apart on a CPU."
    RESUME = "It cannot continue an answer that another engine began."
    TOKEN_IDS = "Other engines cannot continue its answers that have tools or several choices."
    GRAMMARS = "It checks schemas between two tokens of other requests, which then wait."
    HANDOVER = "It cannot share requests with engines that compute prompts for others."
    CACHE_EVENTS = "It does not report its prefix cache, so requests are not routed by it."


@dataclass(frozen=True, slots=True)
class Reliance:
    """One name in a module of vLLM.

    `parameters` are those of a function, without `self` or `cls`. With `replaced`, the function has
    exactly these, in this order, because ours must take what vLLM passes; otherwise it has at least
    these, and no other without a default. None for an attribute or a class.
    """

    part: Part
    module: str
    name: str
    parameters: tuple[str, ...] | None = None
    replaced: bool = False

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def _of(
    part: Part,
    module: str,
    *names: str,
    parameters: str | None = None,
    replaced: bool = False,
) -> Iterator[Reliance]:
    wanted = None if parameters is None else tuple(parameters.split())
    for name in names:
        yield Reliance(part, f"vllm.{module}", name, wanted, replaced)


_LORA_KERNEL = "y x w_t_all"
_NIXL = "distributed.kv_transfer.kv_connector.v1.nixl"
_STACKED = "y x lora_a_stacked lora_b_stacked scale"

RELIANCES: tuple[Reliance, ...] = (
    # The serving layer without its HTTP server (`serving.py`, `engine.py`).
    *_of(
        Part.ANSWERS,
        "entrypoints.launchers.api_server.app_state",
        "init_app_state",
        parameters="engine_client state args supported_tasks",
    ),
    *_of(
        Part.ANSWERS,
        "entrypoints.serve.utils.api_utils",
        "get_max_tokens",
        parameters="max_model_len max_tokens input_length default_sampling_params "
        "override_max_tokens",
    ),
    *_of(
        Part.ANSWERS,
        "v1.engine.async_llm",
        "AsyncLLM.output_processor",
        "AsyncLLM.input_processor",
        "AsyncLLM.engine_core",
        "AsyncLLM.logger_manager",
        "AsyncLLM.log_stats",
        "AsyncLLM.output_handler",
    ),
    *_of(Part.ANSWERS, "v1.engine.output_processor", "OutputProcessor.request_states"),
    *_of(Part.ANSWERS, "v1.metrics.loggers", "StatLoggerManager.stat_loggers"),
    # What a model needs in memory without a GPU (`fitting.py`).
    *_of(Part.CPU, "engine.arg_utils", "EngineArgs.create_model_config", parameters=""),
    *_of(
        Part.CPU,
        "config.model",
        "ModelConfig.get_num_kv_heads",
        "ModelConfig.get_num_layers",
        parameters="parallel_config",
    ),
    *_of(
        Part.CPU,
        "config.model",
        "ModelConfig.get_head_size",
        "ModelConfig.use_mla",
        "ModelConfig.is_moe",
        "ModelConfig.is_quantized",
        "ModelConfig.is_attention_free",
    ),
    # What an adapter weighs, and whether it has any effect (`worker.py`).
    *_of(
        Part.ANSWERS,
        "lora.model_manager",
        "LoRAModelManager.modules",
        "LoRAModelManager.packed_modules_mapping",
    ),
    *_of(
        Part.ANSWERS, "lora.model_manager", "LoRAModelManager.get_adapter", parameters="adapter_id"
    ),
    *_of(
        Part.ANSWERS,
        "lora.model_manager",
        "LoRAModelManager._get_lora_layer_weights",
        parameters="lora_model module_name",
    ),
    *_of(Part.ANSWERS, "lora.worker_manager", "WorkerLoRAManager._adapter_manager"),
    *_of(Part.CPU, "lora.model_manager", "LoRAModelManager.punica_wrapper_mapping"),
    # Adapters on a CPU (`patches.py`).
    *_of(
        Part.CPU,
        "platforms.cpu",
        "CpuPlatform.get_punica_wrapper",
        parameters="",
        replaced=True,
    ),
    *_of(
        Part.CPU,
        "lora.punica_wrapper.punica_cpu",
        "PunicaWrapperCPU._apply_shrink",
        parameters=f"{_LORA_KERNEL} scale",
        replaced=True,
    ),
    *_of(
        Part.CPU,
        "lora.punica_wrapper.punica_cpu",
        "PunicaWrapperCPU._apply_expand",
        parameters=f"{_LORA_KERNEL} y_offset y_slice_size add_inputs",
        replaced=True,
    ),
    *_of(
        Part.CPU,
        "lora.punica_wrapper.punica_cpu",
        "PunicaWrapperCPU.add_lora_linear",
        parameters=f"{_STACKED} output_slices",
    ),
    *_of(
        Part.CPU,
        "lora.punica_wrapper.punica_cpu",
        "PunicaWrapperCPU.add_lora_embedding",
        parameters="y x lora_b_stacked add_inputs",
    ),
    *_of(
        Part.CPU,
        "lora.punica_wrapper.punica_cpu",
        "PunicaWrapperCPU.add_lora_logits",
        parameters=_STACKED,
    ),
    *_of(
        Part.CPU,
        "v1.kv_cache_interface",
        "KVCacheConfig.needs_kv_cache_zeroing",
        parameters="",
        replaced=True,
    ),
    *_of(
        Part.CPU,
        "v1.worker.gpu_model_runner",
        "GPUModelRunner.sample_tokens",
        parameters="grammar_output",
        replaced=True,
    ),
    *_of(
        Part.CPU,
        "v1.worker.gpu_model_runner",
        "GPUModelRunner.input_batch",
        "GPUModelRunner.discard_request_mask",
    ),
    *_of(Part.CPU, "v1.worker.gpu_input_batch", "InputBatch.generators", "InputBatch.num_reqs"),
    # Answers that another engine began (`resume.py`).
    *_of(
        Part.RESUME,
        "v1.request",
        "Request.from_engine_core_request",
        parameters="request block_hasher",
        replaced=True,
    ),
    *_of(Part.RESUME, "v1.request", "Request.append_output_token_ids", parameters="token_ids"),
    *_of(Part.RESUME, "v1.request", "Request.get_finished_reason", parameters=""),
    *_of(Part.RESUME, "v1.request", "Request.num_preemptions", "Request.stop_reason"),
    *_of(
        Part.RESUME,
        "v1.worker.gpu_input_batch",
        "CachedRequestState.__post_init__",
        parameters="",
        replaced=True,
    ),
    *_of(
        Part.RESUME,
        "v1.worker.gpu_input_batch",
        "CachedRequestState.output_token_ids",
        "CachedRequestState.generator",
    ),
    *_of(
        Part.RESUME,
        "v1.structured_output",
        "StructuredOutputManager._create_grammar",
        parameters="request",
        replaced=True,
    ),
    *_of(
        Part.RESUME,
        "v1.structured_output",
        "StructuredOutputManager._get_constraint_bounds",
        parameters="request spec_tokens spec_tokens_committed",
    ),
    *_of(Part.RESUME, "v1.structured_output", "ConstraintBounds.grammar_start"),
    *_of(
        Part.RESUME,
        "v1.core.sched.utils",
        "check_stop",
        parameters="request max_model_len",
    ),
    *_of(
        Part.RESUME,
        "v1.engine.async_llm",
        "AsyncLLM._add_request",
        parameters="request prompt parent_req index queue",
        replaced=True,
    ),
    *_of(
        Part.RESUME,
        "v1.engine.output_processor",
        "OutputProcessor.add_request",
        parameters="request prompt parent_req request_index queue",
    ),
    *_of(
        Part.RESUME,
        "v1.engine.output_processor",
        "OutputProcessor.process_outputs",
        parameters="engine_core_outputs",
    ),
    *_of(
        Part.RESUME,
        "v1.engine.output_processor",
        "RequestState.queue",
        "RequestState.is_prefilling",
    ),
    *_of(
        Part.RESUME,
        "v1.engine.output_processor",
        "RequestOutputCollector.get_nowait",
        parameters="",
        replaced=True,
    ),
    *_of(
        Part.RESUME,
        "v1.engine.output_processor",
        "RequestOutputCollector.put",
        parameters="output",
        replaced=True,
    ),
    *_of(Part.RESUME, "v1.engine", "EngineCoreOutput", "EngineCoreRequest", "FinishReason"),
    *_of(Part.RESUME, "v1.outputs", "LogprobsLists", "LogprobsTensors"),
    # Schemas and grammars checked on a thread (`grammars.py`).
    *_of(
        Part.GRAMMARS,
        "parser.abstract_parser",
        "_xgrammar_supports",
        parameters="structured_outputs",
        replaced=True,
    ),
    *_of(Part.GRAMMARS, "v1.engine.input_processor", "InputProcessor.structured_outputs_config"),
    *_of(
        Part.GRAMMARS,
        "sampling_params",
        "SamplingParams._validate_structured_outputs",
        parameters="model_config structured_outputs_config tokenizer",
    ),
    *_of(Part.GRAMMARS, "sampling_params", "StructuredOutputsParams._backend"),
    # Prompts that one engine computes for another (`nixl.py`).
    *_of(
        Part.HANDOVER,
        f"{_NIXL}.pull_scheduler",
        "NixlPullConnectorScheduler.request_finished",
        parameters="request block_ids",
        replaced=True,
    ),
    *_of(
        Part.HANDOVER,
        f"{_NIXL}.base_scheduler",
        "NixlBaseConnectorScheduler.on_new_request",
        parameters="request",
        replaced=True,
    ),
    *_of(Part.HANDOVER, f"{_NIXL}.base_scheduler", "NixlBaseConnectorScheduler._is_hma_required"),
    *_of(
        Part.HANDOVER,
        f"{_NIXL}.pull_worker",
        "NixlPullConnectorWorker._read_blocks_for_req",
        parameters="req_id meta",
        replaced=True,
    ),
    *_of(
        Part.HANDOVER,
        f"{_NIXL}.base_worker",
        "NixlBaseConnectorWorker._pop_done_transfers",
        parameters="transfers",
        replaced=True,
    ),
    *_of(
        Part.HANDOVER,
        f"{_NIXL}.base_worker",
        "NixlBaseConnectorWorker._handle_failed_transfer",
        parameters="req_id handle failed_req_ids record_failed_transfer",
    ),
    *_of(
        Part.HANDOVER,
        f"{_NIXL}.base_worker",
        "NixlBaseConnectorWorker._recv_failures",
        "NixlBaseConnectorWorker._recving_metadata",
    ),
    *_of(
        Part.HANDOVER,
        f"{_NIXL}.metadata",
        "RemoteMeta.blocks_expiry_time",
        "ReqMeta.remote",
    ),
    # What the prefix cache holds (`cache_events.py`).
    *_of(
        Part.CACHE_EVENTS,
        "distributed.kv_events",
        "BlockStored.block_hashes",
        "BlockStored.parent_block_hash",
        "BlockStored.block_size",
        "BlockStored.session_id",
        "BlockRemoved.block_hashes",
        "AllBlocksCleared",
    ),
)


class ReleaseSource:
    """The source of an installed or unpacked vLLM."""

    def __init__(self, folder: Path) -> None:
        """`folder` contains the package `vllm`."""
        self._folder = folder
        self._modules: dict[str, _Module | None] = {}

    @classmethod
    def installed(cls) -> ReleaseSource:
        """That of this environment."""
        spec = find_spec("vllm")
        assert spec is not None and spec.submodule_search_locations, "vLLM is installed"
        return cls(Path(spec.submodule_search_locations[0]).parent)

    def has(self, wanted: Reliance) -> bool:
        """Whether the name is there, with the parameters."""
        module = self._module(wanted.module)
        return module is not None and module.has(wanted)

    def offers(self, module: str, name: str) -> bool:
        """Whether `from module import name` finds something."""
        found = self._module(module)
        return self._module(f"{module}.{name}") is not None or bool(found and found.binds(name))

    def _module(self, name: str) -> _Module | None:
        if name not in self._modules:
            path = self._folder.joinpath(*name.split("."))
            files = (path.with_suffix(".py"), path / "__init__.py")
            found = next((file for file in files if file.is_file()), None)
            self._modules[name] = _Module(ast.parse(found.read_text("utf-8"))) if found else None
        return self._modules[name]


class _Module:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree

    @cached_property
    def _members(self) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef | None]:
        """Functions, classes and attributes by dotted name; None for what is no function."""
        members: dict[str, ast.FunctionDef | ast.AsyncFunctionDef | None] = {}
        for node in self._tree.body:
            if isinstance(node, ast.ClassDef):
                members[node.name] = None
                for name in _attributes(node):
                    members[f"{node.name}.{name}"] = None
                for part in node.body:
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                        members[f"{node.name}.{part.name}"] = part
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                members[node.name] = node
        return members

    def has(self, wanted: Reliance) -> bool:
        if wanted.name not in self._members:
            return False
        function = self._members[wanted.name]
        if wanted.parameters is None:
            return True
        return function is not None and _takes(function, wanted)

    def binds(self, name: str) -> bool:
        """Whether anything in it gives the name a value, however deep; a module may also make its
        names when they are asked for."""
        for node in ast.walk(self._tree):
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    if node.name in (name, "__getattr__"):
                        return True
                case ast.Import() | ast.ImportFrom():
                    if any((alias.asname or alias.name) == name for alias in node.names):
                        return True
                case ast.Name(ctx=ast.Store()):
                    if node.id == name:
                        return True
        return False


def _attributes(of: ast.ClassDef) -> Iterator[str]:
    """Those of the class, and those that its methods set on `self`."""
    for node in ast.walk(of):
        if isinstance(node, ast.AnnAssign | ast.Assign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and node in of.body:
                    yield target.id
                elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    if target.value.id == "self":
                        yield target.attr


def _takes(function: ast.FunctionDef | ast.AsyncFunctionDef, wanted: Reliance) -> bool:
    assert wanted.parameters is not None
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = positional[len(positional) - len(arguments.defaults) :]
    names = [each.arg for each in [*positional, *arguments.kwonlyargs]]
    required = {each.arg for each in positional if each not in optional} | {
        each.arg
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    }
    own = {"self", "cls"}
    if wanted.replaced:
        return tuple(name for name in names if name not in own) == wanted.parameters
    return required - own <= set(wanted.parameters) <= set(names)


def missing(source: ReleaseSource) -> dict[Part, list[Reliance]]:
    """The entries of the table that this vLLM lacks, by the part that needs them."""
    found: dict[Part, list[Reliance]] = {}
    for wanted in RELIANCES:
        if not source.has(wanted):
            found.setdefault(wanted.part, []).append(wanted)
    return found
