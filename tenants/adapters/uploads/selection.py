"""Which of the files that somebody sent are an adapter's: one list of rules for all ways to send.

A trainer's folder has more in it than the adapter: a README, a tokenizer, the optimizer's state,
`checkpoint-*` folders, and a Mac adds its own. None of these is ever read. What was left out is
told by name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from inference.content import CONFIG, WEIGHTS
from tenants.adapters.checks.findings import shown
from tenants.adapters.uploads.refusals import UploadRefusal, UploadRefused

PICKLE_NAMES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
ARCHIVE_NAMES = (".tar", ".zip", ".tar.gz", ".tgz")
"""Archives that are opened."""
OTHER_ARCHIVE_NAMES = (".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
MLX_WEIGHTS = "adapters.safetensors"
"""The weights' name of mlx-lm."""
MAX_LEFT_OUT = 100
"""Names that an answer lists."""
_SHARD = re.compile(r"adapter_model-(\d{5})-of-(\d{5})\.safetensors")
_CHECKPOINT = re.compile(r"checkpoint-\d+|global_step_?\d+")
_NOT_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|trainer_state).*")
"""Pickles that trainers write beside an adapter's weights."""
_WHOLE_MODEL = re.compile(r"(pytorch_)?model(-\d{5}-of-\d{5})?\.(safetensors|bin)")


@dataclass(frozen=True, slots=True)
class Selection:
    """Paths as they were sent: the configuration, the weights (several if they are in shards, in
    order), and everything else."""

    config: str
    weights: tuple[str, ...]
    left_out: tuple[str, ...]

    def left_out_names(self) -> list[str]:
        """The paths that were left out, for an answer: at most MAX_LEFT_OUT, fit for display."""
        names = [shown(path)[1:-1] for path in self.left_out[:MAX_LEFT_OUT]]
        more = len(self.left_out) - len(names)
        return [*names, f"and {more} more"] if more else names


@dataclass(slots=True)
class _Folder:
    """The paths in one folder that an adapter consists of."""

    configs: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    shards: dict[str, str] = field(default_factory=dict)
    mlx: list[str] = field(default_factory=list)

    @property
    def weights(self) -> tuple[str, ...]:
        """The weights in one file, else all shards; empty if any is missing."""
        if whole := self.whole or self.mlx:
            return tuple(whole[:1])
        names = sorted(self.shards)
        total = int(names[0][-17:-12]) if names else 0
        wanted = [f"adapter_model-{n:05}-of-{total:05}.safetensors" for n in range(1, total + 1)]
        return tuple(self.shards[name] for name in names) if names == wanted else ()

    @property
    def complete(self) -> bool:
        return bool(self.configs and self.weights)


def is_archive_name(name: str) -> bool:
    """Whether a file of this name is opened as an archive."""
    return name.lower().endswith(ARCHIVE_NAMES)


def select(paths: Iterable[str]) -> Selection:
    """Find the one adapter among relative paths (`/` between their parts).

    Names are compared without case. An adapter may lie in any folder. One in a checkpoint's folder
    counts only if there is none elsewhere.

    Raises:
        UploadRefused: there is no adapter, or not exactly one.
    """
    paths = list(paths)
    folders = _folders(paths)
    complete = [home for home, folder in folders.items() if folder.complete]
    final = [home for home in complete if not _is_checkpoint(home)] or complete
    if len(final) > 1:
        named = ", ".join(shown(home) if home else "its top folder" for home in sorted(final))
        raise UploadRefused(
            UploadRefusal.ADAPTERS_SEVERAL,
            f"There are {len(final)} adapters, in {named}: send one of these folders alone.",
        )
    if not final:
        raise _nothing(paths, folders)
    folder = folders[final[0]]
    _refuse_twice(folder)
    chosen = {folder.configs[0], *folder.weights}
    left_out = tuple(path for path in paths if path not in chosen)
    return Selection(folder.configs[0], folder.weights, left_out)


def _folders(paths: Sequence[str]) -> dict[str, _Folder]:
    folders: dict[str, _Folder] = defaultdict(_Folder)
    for path in paths:
        home, _, name = path.rpartition("/")
        lower = name.lower()
        if "__MACOSX" in home.split("/"):
            continue
        if lower == CONFIG:
            folders[home].configs.append(path)
        elif lower == WEIGHTS:
            folders[home].whole.append(path)
        elif lower == MLX_WEIGHTS:
            folders[home].mlx.append(path)
        elif _SHARD.fullmatch(lower):
            folders[home].shards[lower] = path
    return folders


def _refuse_twice(folder: _Folder) -> None:
    for several in (folder.configs, folder.whole, folder.mlx):
        if len(several) > 1:
            raise UploadRefused(
                UploadRefusal.FILE_DUPLICATE, f"{shown(several[1])} is included twice."
            )


def _is_checkpoint(home: str) -> bool:
    return any(_CHECKPOINT.fullmatch(part) for part in home.split("/"))


def _nothing(paths: Sequence[str], folders: dict[str, _Folder]) -> UploadRefused:
    """Why there is no adapter, as exactly as the names tell.

    Raises:
        UploadRefused: a file is there twice.
    """
    for folder in folders.values():
        _refuse_twice(folder)
    names = [path.rpartition("/")[2].lower() for path in paths]
    has_config = any(folder.configs for folder in folders.values())
    has_weights = any(folder.weights for folder in folders.values())
    if has_config and has_weights:
        return UploadRefused(
            UploadRefusal.ARCHIVE_PATH_REFUSED,
            f"{CONFIG} and {WEIGHTS} must be in one folder, but are in "
            f"{', '.join(shown(home) for home in sorted(folders))}.",
        )
    if any(folder.shards for folder in folders.values()) and not has_weights:
        return UploadRefused(
            UploadRefusal.FILE_MISSING,
            "Some of the weights' shards (adapter_model-00001-of-...) are missing.",
        )
    for path, name in zip(paths, names, strict=True):
        if not has_weights and name.endswith(PICKLE_NAMES) and not _NOT_WEIGHTS.fullmatch(name):
            return UploadRefused(
                UploadRefusal.PICKLE_REFUSED,
                f"{shown(path)} can run code when it is loaded. Save the adapter as safetensors: "
                "`model.save_pretrained(folder, safe_serialization=True)`.",
            )
        if name.endswith((*ARCHIVE_NAMES, *OTHER_ARCHIVE_NAMES)):
            return UploadRefused(
                UploadRefusal.ARCHIVE_UNSUPPORTED,
                f"{shown(path)} is another archive: send {CONFIG} and {WEIGHTS}, or one "
                f"{', '.join(ARCHIVE_NAMES[:-1])} or {ARCHIVE_NAMES[-1]} of them.",
            )
    if not has_config and any(map(_WHOLE_MODEL.fullmatch, names)):
        return UploadRefused(
            UploadRefusal.FILE_MISSING,
            f"This is a whole model, not an adapter: {CONFIG} is missing. Send what "
            "`PeftModel.save_pretrained` writes before the adapter is merged.",
        )
    missing = WEIGHTS if has_config else CONFIG
    return UploadRefused(
        UploadRefusal.FILE_MISSING, f"{missing} is missing: send {CONFIG} and {WEIGHTS}."
    )
