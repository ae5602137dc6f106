"""A named profile: a small file that says what vLLM is started with, what that needs and promises.

`manage.py engine --profile NAME` takes a file of this folder, `--profile FILE.toml` one of the
operator's. What the command line sets besides it counts more. `docs/engines.md` lists the fields.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from inference.agent.engines.profile import BadProfile, EngineProfile
from inference.agent.engines.profiles.hardware import CPU_FEATURES, Hardware
from inference.process.environ import parse_size

FOLDER = Path(__file__).parent
MAX_BYTES = 64 << 10
"""Size of a profile's file."""
NOISE = 1e-3
"""How far the log-probability of a token may be from plain's under a profile that is `exact`, in
nats: batches of other shapes add the same numbers in another order."""

NOT_IN_A_PROFILE = {
    "model", "served_name", "runner", "tool_parser", "reasoning_parser", "chat_template", "extra",
    "named", "own_revision", "proof",
}  # fmt: skip
"""Settings of an engine that belong to its model, not to how the model is run."""
SETTINGS = {f.name for f in fields(EngineProfile)} - NOT_IN_A_PROFILE
"""Settings that are an engine profile's own; all others in `[vllm]` are vLLM's arguments."""


class ProfileNeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a machine must have. `cpu` counts without a GPU only, `memory` is what must be free."""

    cpu: tuple[str, ...] = ()
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0
    devices: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    """GPUs, or without any the cores of the CPU."""
    memory: str = "0"
    checkpoint: tuple[str, ...] = ()
    """The quantisation of the model's files, one of these; empty: any model."""
    packages: tuple[Annotated[str, msgspec.Meta(pattern=r"^\w+$")], ...] = ()
    """Python packages that must be installed besides Lorikeet's own."""

    def __post_init__(self) -> None:
        for name in self.cpu:
            _among("cpu", name, tuple(CPU_FEATURES))
        try:
            parse_size(self.memory)
        except ValueError:
            raise ValueError(f"memory is {self.memory!r}: it must be a size such as 4G") from None

    def lacking(self, hardware: Hardware) -> str:
        """What `hardware` lacks, as the rest of "it needs ..."; empty if nothing."""
        for name in self.packages:
            if find_spec(name) is None:
                return f"the Python package {name}, which is not installed here"
        if len(hardware.gpus) < self.gpus:
            there = f"{len(hardware.gpus)} can be used here" if hardware.gpus else _NO_GPU
            return f"{self.gpus} GPU{'s' * (self.gpus > 1)}: {there}"
        if (devices := len(hardware.gpus) or hardware.cores) < self.devices:
            kind = "GPUs" if hardware.gpus else "GPUs or cores"
            return f"{self.devices} {kind}: {devices} can be used here"
        missing = [name for name in self.cpu if name not in hardware.features]
        if missing and not hardware.gpus:
            return f"a CPU with {', '.join(missing)}: {hardware.cpu} has none"
        if parse_size(self.memory) > hardware.free_bytes:
            return f"{self.memory} of memory: {hardware.free_bytes >> 20}M are free here"
        return ""


_NO_GPU = "vLLM can use none here"


class ProfilePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where its engines serve. `pool` is the name for clients, by default the model's own; engines
    with the revision `same` are of plain's revision, so that answers move between them and plain's,
    and those with `own` wait for a rollout. `engines`: how many processes make one."""

    pool: Annotated[str, msgspec.Meta(max_length=255)] = ""
    revision: Literal["same", "own"] = "own"
    engines: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1


class NamedProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file, checked. `lora` says what adapters can do under it."""

    name: str
    summary: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    promise: Literal["exact", "close"]
    lora: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    tolerance: Annotated[float, msgspec.Meta(gt=0, le=10)] | None = None
    """With `close`: how far log-probabilities may be from plain's, in nats a token on average."""
    vllm: dict[str, Any] = {}
    needs: ProfileNeeds = ProfileNeeds()
    place: ProfilePlace = ProfilePlace()

    def __post_init__(self) -> None:
        if (self.promise == "close") != (self.tolerance is not None):
            raise ValueError(
                f"tolerance is {self.tolerance}: it must be set with the promise `close`, and only "
                "then"
            )
        if refused := sorted(NOT_IN_A_PROFILE & self.vllm.keys()):
            raise ValueError(f"vllm has {', '.join(refused)}: set it where the engine is started")
        changing = EngineProfile(model="any", **self.settings).changing
        if self.place.revision == "same" and (self.promise == "close" or changing):
            why = ", ".join(changing) or "the promise `close`"
            raise ValueError(
                f"place.revision is 'same': it must be 'own', because answers differ with {why}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The engine profile's settings that it fixes; vLLM's other arguments are in `extra`."""
        extra = {name: value for name, value in self.vllm.items() if name not in SETTINGS}
        own = {name: value for name, value in self.vllm.items() if name in SETTINGS}
        return own | ({"extra": extra} if extra else {})

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of what it says: a proof is of one content."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    def require(self, hardware: Hardware, model: Path) -> None:
        """Refuse to run where something lacks.

        Raises:
            BadProfile: the machine, or the files of the model, lack something.
        """
        lacking = self.needs.lacking(hardware) or self._checkpoint_lacking(model)
        if lacking:
            raise BadProfile(f"profile {self.name} needs {lacking}")

    def _checkpoint_lacking(self, model: Path) -> str:
        """Of a model that is fetched by its name, vLLM says it."""
        wanted = self.needs.checkpoint
        if not wanted or not (config := model / "config.json").is_file():
            return ""
        described = msgspec.json.decode(config.read_bytes(), type=dict[str, Any])
        method = (described.get("quantization_config") or {}).get("quant_method")
        if method in wanted:
            return ""
        return f"a model whose files are quantised by {' or '.join(wanted)}: {model.name} is not"


def shipped() -> list[str]:
    """The names of the profiles that Lorikeet ships, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def named(name: str) -> NamedProfile:
    """The profile with this name, or in this file.

    Raises:
        BadProfile: there is none, or a field is not valid; the message names field and value.
    """
    if not name.endswith(".toml") and name not in shipped():
        known = ", ".join(shipped())
        raise BadProfile(f"profile is {name!r}: it must be a .toml file, or one of {known}")
    file = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        if (size := file.stat().st_size) > MAX_BYTES:
            raise BadProfile(f"profile {name} has {size} bytes: it may have {MAX_BYTES}")
        content = tomllib.loads(file.read_text())
    except OSError as error:
        raise BadProfile(f"profile is {name!r}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadProfile(f"profile {name} is no TOML: {error}") from None
    return read(file.stem, content)


def read(name: str, content: dict[str, Any]) -> NamedProfile:
    """The profile of a file's content.

    Raises:
        BadProfile: a field is not valid; the message names field, value and what is allowed.
    """
    try:
        return msgspec.convert({"name": name} | content, NamedProfile)
    except msgspec.ValidationError as error:
        raise BadProfile(f"profile {name}: {_fault(error, content)}") from None


def _fault(error: msgspec.ValidationError, content: dict[str, Any]) -> str:
    """msgspec's message, with the field first and its value."""
    message, _, path = str(error).partition(" - at `$.")
    path = path.rstrip("`")
    if not path or not message.startswith(("Expected", "Invalid enum")):
        return message if not path else f"{path}: {message[0].lower()}{message[1:]}"
    value: Any = content
    for key in re.findall(r"\w+", path):
        value = value.get(key) if isinstance(value, dict) else value
    allowed = (
        _choices(path) if message.startswith("Invalid enum") else message.removeprefix("Expected ")
    )
    return f"{path} is {value!r}: it must be {allowed}"


def _choices(path: str) -> str:
    """The values of a field with few."""
    owner = ProfilePlace if path.startswith("place.") else NamedProfile
    hint = get_type_hints(owner)[path.rpartition(".")[2]]
    return f"one of {', '.join(get_args(hint))}"


def _among(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{field} is {value!r}: it must be one of {', '.join(allowed)}")
