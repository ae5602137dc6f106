"""Variants of the demo's adapters: files cut, bits flipped, fields and values changed.

A seed always makes the same mutants. Some kinds leave an adapter valid, so that the engine loads
and probes it too: only an adapter that passes every check could harm its neighbours.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inference.content import CONFIG, WEIGHTS

Files = dict[str, bytes]
"""The files of an adapter by name, or one archive of them."""
Values = np.ndarray[Any, np.dtype[np.float16]]


@dataclass(frozen=True)
class Mutant:
    """The files to upload, and the kind of mutation."""

    kind: str
    files: Files


def mutant(originals: Mapping[str, Files], luck: random.Random) -> Mutant:
    """Mutate one of the originals."""
    kind = luck.choice(sorted(KINDS))
    files = dict(originals[luck.choice(sorted(originals))])
    files[CONFIG] = _fresh(files[CONFIG], luck)
    return Mutant(kind, KINDS[kind](files, luck))


def _fresh(config: bytes, luck: random.Random) -> bytes:
    """Make the content unique, because a known content would not be checked again."""
    return _with(config, peft_version=f"0.{luck.getrandbits(64)}")


def _with(config: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(config) | fields).encode()


# --- Bytes ---------------------------------------------------------------------------------------


def _header_end(weights: bytes) -> int:
    return 8 + int.from_bytes(weights[:8], "little")


def _edited(raw: bytes, end: int, luck: random.Random) -> bytes:
    """The data after a few edits within its first `end` bytes."""
    data = bytearray(raw)
    for _ in range(luck.randint(1, 4)):
        at = luck.randrange(min(end, len(data)))
        match luck.randrange(4):
            case 0:
                data[at] ^= 1 << luck.randrange(8)
            case 1:
                data[at:at] = luck.randbytes(luck.randint(1, 9))
            case 2:
                del data[at : at + luck.randint(1, 9)]
            case _:
                data[at] = luck.randrange(256)
    return bytes(data)


def _edit_header(files: Files, luck: random.Random) -> Files:
    weights = files[WEIGHTS]
    return files | {WEIGHTS: _edited(weights, _header_end(weights), luck)}


def _edit_config(files: Files, luck: random.Random) -> Files:
    return files | {CONFIG: _edited(files[CONFIG], len(files[CONFIG]), luck)}


def _cut(files: Files, luck: random.Random) -> Files:
    name = luck.choice([CONFIG, WEIGHTS])
    return files | {name: files[name][: luck.randrange(len(files[name]))]}


def _noise(files: Files, luck: random.Random) -> Files:
    return {CONFIG: files[CONFIG], WEIGHTS: luck.randbytes(luck.randint(0, 4096))}


# --- Values --------------------------------------------------------------------------------------


def _header(weights: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(weights[8 : _header_end(weights)])
    return found


def _assembled(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _changed_values(
    change: Callable[[Values, random.Random], None],
) -> Callable[[Files, random.Random], Files]:
    """A mutation that applies `change` to the file's numbers, which are float16 in the demo's
    adapters."""

    def mutate(files: Files, luck: random.Random) -> Files:
        weights = files[WEIGHTS]
        end = _header_end(weights)
        values = np.frombuffer(weights[end:], "<f2").copy()
        change(values, luck)
        return files | {WEIGHTS: weights[:end] + values.tobytes()}

    return mutate


def _flip_bits(values: Values, luck: random.Random) -> None:
    bits = values.view("<u2")
    for _ in range(luck.randint(1, 50)):
        bits[luck.randrange(bits.size)] ^= np.uint16(1 << luck.randrange(16))


def _scale(values: Values, luck: random.Random) -> None:
    with np.errstate(over="ignore"):
        values *= np.float16(luck.choice([-1, 0, 1e-7, 0.1, 3, 30, 1000]))


def _poison(values: Values, luck: random.Random) -> None:
    values[luck.randrange(values.size)] = luck.choice([np.nan, np.inf, -np.inf, 65504, -60000])


def _shuffle(values: Values, luck: random.Random) -> None:
    np.random.default_rng(luck.getrandbits(32)).shuffle(values)


# --- Fields --------------------------------------------------------------------------------------


def _change_header(files: Files, luck: random.Random) -> Files:
    """Change a field of one tensor."""
    weights = files[WEIGHTS]
    header = _header(weights)
    name = luck.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    match luck.randrange(5):
        case 0:
            entry["shape"] = luck.choice([entry["shape"][::-1], [], [0, 0], [1 << 62], [-1, 8]])
        case 1:
            entry["dtype"] = luck.choice(["F16", "BF16", "I32", "F64", "U8", "F9"])
        case 2:
            entry["data_offsets"] = luck.choice([[0, 1 << 63], [8, 4], [-4, 0], [0, 0]])
        case 3:
            header[luck.choice([name.replace("lora_A", "lora_B"), name[:-1], "x", "\0"])] = entry
        case _:
            del header[name]
    return files | {WEIGHTS: _assembled(header, weights[_header_end(weights) :])}


def _change_config(files: Files, luck: random.Random) -> Files:
    """Change a field of the configuration; sometimes the new value equals the old one."""
    fields: dict[str, list[Any]] = {
        "r": [0, -1, 1, 4, 8, 16, 10**9, 8.0, "8", None, True],
        "lora_alpha": [0, -16, 1e-9, 1, 16, 64, 1e300, 10**400, "16", None],
        "target_modules": [["q_proj"], [], "all-linear", ".*", ["x" * 1000], [["q_proj"]], {}],
        "use_rslora": [True, False, 1, "yes"],
        "use_dora": [True, False],
        "bias": ["none", "all", 0],
        "peft_type": ["LORA", "IA3", None, []],
        "task_type": ["CAUSAL_LM", "SEQ_CLS", None, 1],
        "modules_to_save": [None, [], ["lm_head"]],
        "rank_pattern": [{}, {"q_proj": 4}],
        "base_model_name_or_path": ["lorikeet-demo", "meta/other", "", None, 7, "a\0b\ud800"],
        luck.choice(["unknown", "auto_map", "__proto__", "x" * 10_000]): [0, 1, {"a": "b"}],
    }
    name = luck.choice(list(fields))
    return files | {CONFIG: _with(files[CONFIG], **{name: luck.choice(fields[name])})}


def _nest_config(files: Files, luck: random.Random) -> Files:
    deep = luck.choice([b"[" * 100_000, b'{"a":' * 50_000, b"[" * 500 + b"]" * 500])
    return files | {CONFIG: files[CONFIG][:-1] + b', "eva_config": ' + deep + b"}"}


def _swap(files: Files, luck: random.Random) -> Files:
    return {CONFIG: files[WEIGHTS], WEIGHTS: files[CONFIG]}


def _unchanged(files: Files, luck: random.Random) -> Files:
    return files


# --- Archives ------------------------------------------------------------------------------------


def _tar(files: Files) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5  # an extended header
            archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


def _zip(files: Files) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target.getvalue()


def _archived(pack: Callable[[Files], bytes], name: str) -> Callable[[Files, random.Random], Files]:
    def mutate(files: Files, luck: random.Random) -> Files:
        raw = pack(files)
        # Headers are at a tar's start and at a zip's end.
        if name.endswith(".tar"):
            return {name: _edited(raw, 3 * tarfile.BLOCKSIZE, luck)}
        return {name: raw[:-200] + _edited(raw[-200:], 200, luck)}

    return mutate


KINDS: Mapping[str, Callable[[Files, random.Random], Files]] = {
    "bytes of the header": _edit_header,
    "bytes of the configuration": _edit_config,
    "a file cut": _cut,
    "noise": _noise,
    "bits of values": _changed_values(_flip_bits),
    "values scaled": _changed_values(_scale),
    "a value that is none": _changed_values(_poison),
    "values shuffled": _changed_values(_shuffle),
    "a tensor's entry": _change_header,
    "a configuration's field": _change_config,
    "a configuration nested": _nest_config,
    "files swapped": _swap,
    "nothing": _unchanged,
    "a tar": _archived(_tar, "adapter.tar"),
    "a zip": _archived(_zip, "adapter.zip"),
}
