"""Static validation: valid adapters pass, each kind of malformed one has its own code."""

from __future__ import annotations

import io
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference.content import CONFIG, WEIGHTS
from tenants.adapters.checks.config import MAX_CONFIG_BYTES, MAX_PATTERNS
from tenants.adapters.checks.findings import MAX_FINDINGS, Code
from tenants.adapters.checks.safetensors_header import MAX_HEADER_BYTES
from tenants.adapters.checks.static import Verdict, check
from tenants.adapters.checks.target_modules import PREFIX, TargetModules
from tests.adapters.checks.builder import (
    HIDDEN,
    INNER,
    KV,
    LAYERS,
    TARGETS,
    Weights,
    config,
    config_bytes,
    encode,
    lora,
    name_of,
)

Q_A, Q_B = name_of(0, "self_attn.q_proj", "A"), name_of(0, "self_attn.q_proj", "B")


def verdict(configuration: bytes, weights: bytes, targets: TargetModules = TARGETS) -> Verdict:
    return check(io.BytesIO(configuration), io.BytesIO(weights), len(weights), targets)


def codes(found: Verdict) -> list[Code]:
    return [finding.code for finding in found.findings]


# --- Valid adapters ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_sound_adapter(dtype: str) -> None:
    found = verdict(config_bytes(), lora(dtype=dtype).bytes())
    assert found.accepted, list(found.findings)
    assert found.tensors == 4 * LAYERS
    assert found.parameters == LAYERS * 4 * (2 * HIDDEN + HIDDEN + KV)
    assert found.config is not None
    assert found.config.as_json() == {
        "r": 4,
        "lora_alpha": 8.0,
        "use_rslora": False,
        "target_modules": ["q_proj", "v_proj"],
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"task_type": None},
        {"lora_alpha": 0.5},
        {"use_rslora": True},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": False},
        {"bias": ...},
        {"target_modules": ["self_attn.q_proj", "v_proj"]},
        {"target_modules": [n.split(PREFIX)[1][:-14] for n in lora().entries if "lora_A" in n]},
        {"some_new_switch": False, "another": None, "third": {}},
    ],
)
def test_sound_configurations(changes: dict[str, Any]) -> None:
    found = verdict(config_bytes(**changes), lora().bytes())
    assert found.accepted, list(found.findings)


def test_all_linear_means_every_module_but_the_output_layer() -> None:
    shape = TargetModules({**TARGETS.modules, "lm_head": [100, HIDDEN]}, 16)
    targets = tuple(name for name in shape.leaf_names if name != "lm_head")
    found = verdict(config_bytes(target_modules="all-linear"), lora(targets).bytes(), shape)
    assert found.accepted, list(found.findings)


def test_padded_header_and_no_metadata() -> None:
    weights = lora()
    weights.metadata = None
    header = json.dumps(weights.laid_out()).encode() + b" " * 7
    assert verdict(config_bytes(), encode(header, weights.body())).accepted


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": "all-linear"},
        {"exclude_modules": ["layers.0.mlp.down_proj", "v_proj"]},
        {"exclude_modules": r".*\.1\..*"},
        {"target_modules": r"(?:.*?(?:self_attn).*?(?:q_proj|o_proj))|(?:\bmodel.*up_proj)"},
        {"layers_to_transform": 0},
        {"layers_to_transform": [1]},
        {"layers_to_transform": [1], "layers_pattern": ["h", "layers"]},
        {"layers_to_transform": [1], "target_modules": ["model.layers.0.mlp.up_proj", "k_proj"]},
        {"rank_pattern": {"0.self_attn.v_proj": 2, "v_proj": 8}},
        {"rank_pattern": {"layers.1.self_attn.q_proj": 2, "q_proj": 8}, "use_rslora": True},
        {"alpha_pattern": {"^model.layers.1.self_attn.q_proj": 1, "v_proj": 0.5}},
    ],
)
def test_what_peft_itself_writes(tmp_path: Path, options: dict[str, Any]) -> None:
    """Its modules, ranks and scalings are those that PEFT used."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    wanted = {"target_modules": ["q_proj", "v_proj", "down_proj"]} | options
    model = get_peft_model(base, LoraConfig(r=4, task_type="CAUSAL_LM", **wanted))
    model.save_pretrained(str(tmp_path))
    found = verdict((tmp_path / CONFIG).read_bytes(), (tmp_path / WEIGHTS).read_bytes())
    assert found.accepted, list(found.findings)
    assert found.config is not None
    assert {path: found.config.scaling_of(path) for path in found.config.targeted} == {
        path.removeprefix(PREFIX): module.scaling["default"]
        for path, module in model.named_modules()
        if hasattr(module, "lora_A")
    }


# --- Malformed configurations --------------------------------------------------------------------

_HUGE_INTEGER = b'{"r": 1' + b"0" * 5000 + b"}"

BAD_CONFIGS: dict[str, tuple[bytes, Code]] = {
    "too large": (b" " * MAX_CONFIG_BYTES + config_bytes(), Code.CONFIG_TOO_LARGE),
    "empty": (b"", Code.CONFIG_NOT_JSON),
    "not json": (b"{r: 4}", Code.CONFIG_NOT_JSON),
    "not utf-8": (config_bytes().decode().encode("utf-16"), Code.CONFIG_NOT_JSON),
    "byte-order mark": (b"\xef\xbb\xbf" + config_bytes(), Code.CONFIG_NOT_JSON),
    "a list": (b"[1]", Code.CONFIG_NOT_JSON),
    "NaN": (config_bytes().replace(b"0.05", b"NaN"), Code.CONFIG_NOT_JSON),
    "deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, Code.CONFIG_TOO_LARGE),
    "deep within the limit": (b'{"a":' * 40_000 + b"1" + b"}" * 40_000, Code.CONFIG_NOT_JSON),
    "an integer of 5,000 digits": (_HUGE_INTEGER, Code.CONFIG_NOT_JSON),
    "a key twice": (b'{"r": 64, ' + config_bytes()[1:], Code.CONFIG_DUPLICATE_KEY),
    "a key twice, deep down": (
        config_bytes().replace(b'"loftq_config": {}', b'"loftq_config": {"a": 1, "a": 2}'),
        Code.CONFIG_DUPLICATE_KEY,
    ),
    "prompt tuning": (config_bytes(peft_type="PROMPT_TUNING"), Code.PEFT_TYPE_UNSUPPORTED),
    "no type": (config_bytes(peft_type=...), Code.PEFT_TYPE_UNSUPPORTED),
    "classifier": (config_bytes(task_type="SEQ_CLS"), Code.TASK_TYPE_UNSUPPORTED),
    "rank above the pool": (config_bytes(r=17), Code.RANK_TOO_LARGE),
    "rank zero": (config_bytes(r=0), Code.RANK_INVALID),
    "rank negative": (config_bytes(r=-4), Code.RANK_INVALID),
    "rank true": (config_bytes(r=True), Code.RANK_INVALID),
    "rank a float": (config_bytes(r=4.0), Code.RANK_INVALID),
    "rank missing": (config_bytes(r=...), Code.RANK_INVALID),
    "alpha a text": (config_bytes(lora_alpha="8"), Code.ALPHA_INVALID),
    "alpha infinite": (config_bytes().replace(b'a": 8', b'a": 1e999'), Code.ALPHA_INVALID),
    "alpha beyond floats": (config_bytes(lora_alpha=10**400), Code.ALPHA_INVALID),
    "alpha missing": (config_bytes(lora_alpha=...), Code.ALPHA_INVALID),
    "targets match nothing": (config_bytes(target_modules="(a+)+$"), Code.TARGET_MODULES_INVALID),
    "targets are no expression": (config_bytes(target_modules="(q_"), Code.TARGET_MODULES_INVALID),
    "targets take forever": (
        config_bytes(target_modules=r"(\w*\.*)*!"),
        Code.TARGET_MODULES_INVALID,
    ),
    "targets too long": (config_bytes(target_modules="q" * 8193), Code.TARGET_MODULES_INVALID),
    "excluded, a number": (config_bytes(exclude_modules=[1]), Code.EXCLUDE_MODULES_INVALID),
    "excluded, no expression": (config_bytes(exclude_modules="*"), Code.EXCLUDE_MODULES_INVALID),
    "excluded, but trained": (
        config_bytes(exclude_modules="v_proj|.*q_p.*"),
        Code.MODULE_NOT_TARGETED,
    ),
    "layers of a text": (config_bytes(layers_to_transform="0"), Code.LAYERS_INVALID),
    "layers of true": (config_bytes(layers_to_transform=[True]), Code.LAYERS_INVALID),
    "layers of an expression": (
        config_bytes(layers_to_transform=1, target_modules=".*q_proj"),
        Code.LAYERS_INVALID,
    ),
    "layers' name an expression": (
        config_bytes(layers_to_transform=[0, 1], layers_pattern="(a+)+"),
        Code.LAYERS_INVALID,
    ),
    "layers' name alone": (config_bytes(layers_pattern="layers"), Code.LAYERS_INVALID),
    "layer 0 alone, but others trained": (
        config_bytes(layers_to_transform=0),
        Code.MODULE_NOT_TARGETED,
    ),
    "rank of a module": (config_bytes(rank_pattern={"v_proj": 8}), Code.RANK_MISMATCH),
    "rank of a module, none": (config_bytes(rank_pattern={"k_proj": None}), Code.RANK_INVALID),
    "rank of a module, large": (config_bytes(rank_pattern={"k_proj": 17}), Code.RANK_TOO_LARGE),
    "ranks in a list": (config_bytes(rank_pattern=["q_proj"]), Code.PATTERN_INVALID),
    "ranks by expression": (config_bytes(rank_pattern={"(a+)+": 4}), Code.PATTERN_INVALID),
    "ranks without number": (
        config_bytes(rank_pattern={f"m{n}": 4 for n in range(MAX_PATTERNS + 1)}),
        Code.PATTERN_INVALID,
    ),
    "alpha of a module, a text": (config_bytes(alpha_pattern={"k_proj": "1"}), Code.ALPHA_INVALID),
    "alphas by expression": (config_bytes(alpha_pattern={"a|b": 4}), Code.PATTERN_INVALID),
    "targets empty": (config_bytes(target_modules=[]), Code.TARGET_MODULES_INVALID),
    "targets numbers": (config_bytes(target_modules=[1]), Code.TARGET_MODULES_INVALID),
    "targets null": (config_bytes(target_modules=None), Code.TARGET_MODULES_INVALID),
    "target unknown": (config_bytes(target_modules=["c_attn"]), Code.TARGET_MODULE_UNKNOWN),
    "target embedding": (config_bytes(target_modules=["embed_tokens"]), Code.TARGET_MODULE_UNKNOWN),
    "target half a name": (config_bytes(target_modules=["_proj"]), Code.TARGET_MODULE_UNKNOWN),
} | {
    f"option {name}": (config_bytes(**{name: value}), Code.OPTION_UNSUPPORTED)
    for name, value in {
        "bias": "all",
        "lora_bias": True,
        "use_dora": True,
        "use_rslora": "yes",
        "fan_in_fan_out": True,
        "modules_to_save": ["lm_head"],
        "layer_replication": [[0, 2]],
        "target_parameters": ["experts.gate_up_proj"],
        "trainable_token_indices": [1, 2],
        "alora_invocation_tokens": [5],
        "init_lora_weights": "lora_ga",
        "use_qalora": True,
        "use_bdlora": {"nblocks": 2},
        "a_switch_of_next_year": True,
    }.items()
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_malformed_configuration(case: str) -> None:
    raw, code = BAD_CONFIGS[case]
    assert {*codes(verdict(raw, lora().bytes()))} == {code}


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"use_dora": True}, "peft.save_as_lora("),
        ({"modules_to_save": ["lm_head"]}, "merge_and_unload()"),
        ({"bias": "all"}, "merge_and_unload()"),
        ({"init_lora_weights": "pissa_niter_16"}, "path_initial_model_for_weight_conversion"),
    ],
)
def test_what_engines_do_not_support_comes_with_advice(
    changes: dict[str, Any], advice: str
) -> None:
    (finding,) = verdict(config_bytes(**changes), lora().bytes()).findings
    assert finding.code == Code.OPTION_UNSUPPORTED
    assert advice in finding.message


# --- Malformed weights ---------------------------------------------------------------------------


def _with(change: Callable[[Weights], object]) -> bytes:
    weights = lora()
    change(weights)
    return weights.bytes()


def _header(change: Callable[[dict[str, Any]], object]) -> bytes:
    weights = lora()
    header = weights.laid_out()
    change(header)
    return encode(json.dumps(header).encode(), weights.body())


def _raw_header(change: Callable[[bytes], bytes]) -> bytes:
    weights = lora()
    return encode(change(json.dumps(weights.laid_out()).encode()), weights.body())


def _swap_offsets(header: dict[str, Any]) -> None:
    """Two tensors claim the same bytes, and none claims the other's."""
    other = name_of(1, "self_attn.q_proj", "A")
    header[Q_A]["data_offsets"] = header[other]["data_offsets"]


def _shift_all(header: dict[str, Any]) -> None:
    for name, entry in header.items():
        if name != "__metadata__":
            entry["data_offsets"] = [at + 4 for at in entry["data_offsets"]]


SOUND = lora().bytes()
NAN, INFINITY = struct.pack("<f", float("nan")), struct.pack("<f", float("-inf"))

BAD_WEIGHTS: dict[str, tuple[bytes, Code]] = {
    "empty": (b"", Code.HEADER_INVALID),
    "seven bytes": (SOUND[:7], Code.HEADER_INVALID),
    "header longer than the file": (b"\xff" * 8 + SOUND[8:], Code.HEADER_INVALID),
    "header cut off": (SOUND[:200], Code.HEADER_INVALID),
    "header too large": (
        (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{" + b" " * MAX_HEADER_BYTES,
        Code.HEADER_TOO_LARGE,
    ),
    "pickle": (b"\x80\x04\x95" + b"a" * 500, Code.HEADER_INVALID),
    "header starts with a space": (_raw_header(lambda h: b" " + h), Code.HEADER_INVALID),
    "header not utf-8": (
        _raw_header(lambda h: h.replace(b"format", b"form\xff\xff")),
        Code.HEADER_INVALID,
    ),
    "header not json": (_raw_header(lambda h: h[:-1] + b"]"), Code.HEADER_INVALID),
    "metadata a number": (_header(lambda h: h.update(__metadata__={"a": 1})), Code.HEADER_INVALID),
    "a tensor twice": (
        _raw_header(lambda h: h[:-1] + b', "' + Q_A.encode() + b'": {}}'),
        Code.HEADER_DUPLICATE_KEY,
    ),
    "entry a number": (_header(lambda h: h.update({Q_A: 1})), Code.TENSOR_INVALID),
    "entry without shape": (_header(lambda h: h[Q_A].pop("shape")), Code.TENSOR_INVALID),
    "entry with more": (_header(lambda h: h[Q_A].update(extra=1)), Code.TENSOR_INVALID),
    "shape negative": (_header(lambda h: h[Q_A].update(shape=[-4, -16])), Code.TENSOR_INVALID),
    "shape of floats": (_header(lambda h: h[Q_A].update(shape=[4.0, 16])), Code.TENSOR_INVALID),
    "shape of 9 axes": (_header(lambda h: h[Q_A].update(shape=[1] * 9)), Code.TENSOR_INVALID),
    "offsets of one": (_header(lambda h: h[Q_A].update(data_offsets=[0])), Code.TENSOR_INVALID),
    "offsets backwards": (
        _header(lambda h: h[Q_A]["data_offsets"].reverse()),
        Code.OFFSETS_INVALID,
    ),
    "offsets too short for the shape": (
        _header(lambda h: h[Q_A].update(shape=[4, 17])),
        Code.OFFSETS_INVALID,
    ),
    "overlap": (_header(_swap_offsets), Code.OFFSETS_INVALID),
    "hole": (_header(_shift_all), Code.OFFSETS_INVALID),
    "truncated": (SOUND[:-1], Code.FILE_LENGTH_MISMATCH),
    "data after": (SOUND + b"\0", Code.FILE_LENGTH_MISMATCH),
    "float64": (_with(lambda w: w.put(Q_A, [4, HIDDEN], "F64")), Code.DTYPE_UNSUPPORTED),
    "int8": (_with(lambda w: w.put(Q_A, [4, HIDDEN], "I8")), Code.DTYPE_UNSUPPORTED),
    "dtype a list": (_header(lambda h: h[Q_A].update(dtype=["F32"])), Code.DTYPE_UNSUPPORTED),
    "no tensors": (Weights().bytes(), Code.NO_TENSORS),
    "too many tensors": (
        _with(lambda w: [w.put(f"x{n}", [1]) for n in range(2 * len(TARGETS.modules))]),
        Code.TOO_MANY_TENSORS,
    ),
    "no prefix": (
        _with(lambda w: w.put("model.layers.0.self_attn.q_proj.lora_A.weight", [4, HIDDEN])),
        Code.TENSOR_NAME_UNSUPPORTED,
    ),
    "adapter's name inside": (
        _with(lambda w: w.put(Q_A.replace(".weight", ".default.weight"), [4, HIDDEN])),
        Code.TENSOR_NAME_UNSUPPORTED,
    ),
    "LoRA bias": (
        _with(lambda w: w.put(Q_B.replace("weight", "bias"), [HIDDEN])),
        Code.TENSOR_NAME_UNSUPPORTED,
    ),
    "DoRA magnitude": (
        _with(lambda w: w.put(Q_A.replace("lora_A.weight", "lora_magnitude_vector"), [HIDDEN])),
        Code.TENSOR_NAME_UNSUPPORTED,
    ),
    "embedding": (
        _with(lambda w: w.put(f"{PREFIX}model.embed_tokens.lora_embedding_A", [4, 32])),
        Code.TENSOR_NAME_UNSUPPORTED,
    ),
    "whole base embedding, which vLLM skips": (
        _with(lambda w: w.put(f"{PREFIX}model.embed_tokens.base_layer.weight", [32, HIDDEN])),
        Code.TENSOR_NAME_UNSUPPORTED,
    ),
    "layer that does not exist": (
        _with(
            lambda w: [
                w.put(name_of(9, "self_attn.q_proj", side), shape)
                for side, shape in (("A", [4, HIDDEN]), ("B", [HIDDEN, 4]))
            ]
        ),
        Code.MODULE_UNKNOWN,
    ),
    "module not in target_modules": (
        _with(
            lambda w: [
                w.put(name_of(0, "self_attn.o_proj", side), shape)
                for side, shape in (("A", [4, HIDDEN]), ("B", [HIDDEN, 4]))
            ]
        ),
        Code.MODULE_NOT_TARGETED,
    ),
    "no lora_B": (_with(lambda w: w.drop(Q_B)), Code.PAIR_INCOMPLETE),
    "no lora_A": (_with(lambda w: w.drop(Q_A)), Code.PAIR_INCOMPLETE),
    "a layer missing": (
        _with(lambda w: [w.drop(name) for name in list(w.entries) if "layers.1" in name]),
        Code.TARGET_WITHOUT_TENSORS,
    ),
    "hidden size of another model": (
        _with(lambda w: w.put(Q_A, [4, HIDDEN - 4])),
        Code.SHAPE_MISMATCH,
    ),
    "three axes": (_with(lambda w: w.put(Q_A, [4, HIDDEN, 1])), Code.SHAPE_MISMATCH),
    "transposed": (_with(lambda w: w.put(Q_A, [HIDDEN, 4])), Code.SHAPE_MISMATCH),
    "rank other than r": (_with(lambda w: w.put(Q_A, [8, HIDDEN])), Code.RANK_MISMATCH),
    "no rank at all": (_with(lambda w: w.put(Q_B, [HIDDEN, 0])), Code.RANK_MISMATCH),
    "NaN first": (_with(lambda w: w.set_value(Q_A, 0, NAN)), Code.NOT_FINITE),
    "-Inf last": (_with(lambda w: w.set_value(Q_B, HIDDEN * 4 - 1, INFINITY)), Code.NOT_FINITE),
    "float16 NaN": (
        _with(lambda w: w.put(Q_A, [4, HIDDEN], "F16", np.float16("nan").tobytes())),
        Code.NOT_FINITE,
    ),
    "bfloat16 Inf": (
        _with(lambda w: w.put(Q_A, [4, HIDDEN], "BF16", b"\x80\x7f")),
        Code.NOT_FINITE,
    ),
    "bfloat16 NaN": (
        _with(lambda w: w.put(Q_A, [4, HIDDEN], "BF16", b"\x81\xff")),
        Code.NOT_FINITE,
    ),
    "infinite as float16": (
        _with(lambda w: w.set_value(Q_A, 1, struct.pack("<f", 1e30))),
        Code.VALUE_TOO_LARGE,
    ),
    "infinite as float16 once scaled": (
        _with(lambda w: w.set_value(Q_B, 1, struct.pack("<f", 40000.0))),
        Code.VALUE_TOO_LARGE,
    ),
}


@pytest.mark.parametrize("case", BAD_WEIGHTS)
def test_malformed_weights(case: str) -> None:
    raw, code = BAD_WEIGHTS[case]
    assert codes(verdict(config_bytes(), raw)) == [code]


# --- Reports -------------------------------------------------------------------------------------


def test_messages_name_the_value_and_the_limit() -> None:
    found = verdict(config_bytes(r=128), lora().bytes())
    (finding,) = found.findings
    assert finding.message == "r is 128, above this base model's limit of 16."
    found = verdict(config_bytes(), BAD_WEIGHTS["hidden size of another model"][0])
    assert "[4, 12]" in next(iter(found.findings)).message
    assert "[4, 16]" in next(iter(found.findings)).message


def test_all_findings_are_told_and_their_number_is_bounded() -> None:
    weights = lora()
    weights.set_value(Q_A, 0, NAN)
    weights.put(Q_B, [HIDDEN, 8])
    found = verdict(config_bytes(), weights.bytes())
    assert codes(found) == [Code.RANK_MISMATCH, Code.NOT_FINITE]

    options = {f"new_option_{n}": True for n in range(MAX_FINDINGS + 5)}
    report = verdict(config_bytes(**options), lora().bytes()).report()
    assert len(report["findings"]) == MAX_FINDINGS
    assert report["findings_omitted"] == 5


def test_a_report_holds_nothing_that_the_database_or_a_terminal_cannot_take() -> None:
    evil = "a\x00b\ud800\x1b[31m" + "x" * 1000
    weights = lora()
    weights.put(evil, [1])
    reports = [
        verdict(config_bytes(**{evil: True}), lora().bytes()).report(),
        verdict(config_bytes(), weights.bytes()).report(),
    ]
    texts = [finding["message"] for report in reports for finding in report["findings"]]
    assert len(texts) == 2
    assert all(character.isascii() and character.isprintable() for character in "".join(texts))
    assert all(len(text) < 400 for text in texts)


# --- Memory --------------------------------------------------------------------------------------


class _Generated(io.BytesIO):
    """A safetensors file of any size, all zeros after its header, generated as it is read."""

    def __init__(self, head: bytes, total: int) -> None:
        self._head, self._total, self._at = head, total, 0

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None and size >= 0, "all of the file at once"
        size = min(size, self._total - self._at)
        start, self._at = self._at, self._at + size
        head = self._head[start : start + size]
        return head + b"\0" * (size - len(head))

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset
        return offset


def test_memory_stays_bounded_with_64_mib_of_weights() -> None:
    side = 1 << 20
    targets = TargetModules({"model.layers.0.mlp.up_proj": [side, side]}, 16)
    half = 32 << 20
    header = {
        name_of(0, "mlp.up_proj", letter): {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [n * half, (n + 1) * half],
        }
        for n, (letter, shape) in enumerate({"A": [8, side], "B": [side, 8]}.items())
    }
    head = encode(json.dumps(header).encode(), b"")
    total = len(head) + 2 * half
    raw = io.BytesIO(config_bytes(r=8, target_modules=["up_proj"]))
    tracemalloc.start()
    try:
        found = check(raw, _Generated(head, total), total, targets)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.accepted, list(found.findings)
    assert peak < 2 << 20


def test_configuration_builder_matches_the_field_names_of_peft() -> None:
    from peft import LoraConfig

    unknown = config().keys() - LoraConfig.__dataclass_fields__.keys()
    assert not unknown
