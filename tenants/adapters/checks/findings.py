"""What is wrong with an adapter: a stable code and one sentence for a person for each fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

MAX_FINDINGS = 20
"""Findings kept per adapter: more would help nobody, and a file can cause millions."""
MAX_SHOWN = 80
"""Characters of a client's value that a message shows."""
MAX_ERROR_CHARS = 300
"""Characters of another program's error message that a message repeats."""


class Code(StrEnum):
    """Why an adapter is rejected. Part of the API: a code is never renamed or reused."""

    CONFIG_TOO_LARGE = "config_too_large"
    CONFIG_NOT_JSON = "config_not_json"
    CONFIG_DUPLICATE_KEY = "config_duplicate_key"
    PEFT_TYPE_UNSUPPORTED = "peft_type_unsupported"
    TASK_TYPE_UNSUPPORTED = "task_type_unsupported"
    RANK_INVALID = "rank_invalid"
    RANK_TOO_LARGE = "rank_too_large"
    ALPHA_INVALID = "alpha_invalid"
    TARGET_MODULES_INVALID = "target_modules_invalid"
    TARGET_MODULE_UNKNOWN = "target_module_unknown"
    EXCLUDE_MODULES_INVALID = "exclude_modules_invalid"
    LAYERS_INVALID = "layers_invalid"
    PATTERN_INVALID = "pattern_invalid"
    OPTION_UNSUPPORTED = "option_unsupported"

    HEADER_INVALID = "header_invalid"
    HEADER_TOO_LARGE = "header_too_large"
    HEADER_DUPLICATE_KEY = "header_duplicate_key"
    TENSOR_INVALID = "tensor_invalid"
    OFFSETS_INVALID = "offsets_invalid"
    FILE_LENGTH_MISMATCH = "file_length_mismatch"
    TOO_MANY_TENSORS = "too_many_tensors"
    DTYPE_UNSUPPORTED = "dtype_unsupported"
    TENSOR_NAME_UNSUPPORTED = "tensor_name_unsupported"
    MODULE_UNKNOWN = "module_unknown"
    MODULE_NOT_TARGETED = "module_not_targeted"
    PAIR_INCOMPLETE = "pair_incomplete"
    TARGET_WITHOUT_TENSORS = "target_without_tensors"
    SHAPE_MISMATCH = "shape_mismatch"
    RANK_MISMATCH = "rank_mismatch"
    NO_TENSORS = "no_tensors"
    NOT_FINITE = "not_finite"
    VALUE_TOO_LARGE = "value_too_large"

    CHECK_LIMIT_EXCEEDED = "check_limit_exceeded"
    CHECKS_FAILED = "checks_failed"

    LOAD_FAILED = "load_failed"
    NOT_FINITE_OUTPUT = "not_finite_output"
    NO_EFFECT = "no_effect"
    DIFFERS_FROM_PEFT = "differs_from_peft"
    DIFFERS_FROM_TRAINER = "differs_from_trainer"


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason to reject an adapter; `message` names the value and the limit."""

    code: Code
    message: str

    def as_json(self) -> dict[str, str]:
        return {"code": self.code.value, "message": self.message}


class Findings:
    """The findings of one adapter: the first MAX_FINDINGS, and how many more there were."""

    def __init__(self) -> None:
        self._kept: list[Finding] = []
        self.total = 0

    def add(self, code: Code, message: str) -> None:
        self.total += 1
        if len(self._kept) < MAX_FINDINGS:
            self._kept.append(Finding(code, message))

    def __bool__(self) -> bool:
        return self.total > 0

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._kept)

    @property
    def omitted(self) -> int:
        return self.total - len(self._kept)


def shown(value: object) -> str:
    """A client's value for a message: ASCII without control characters, of bounded length.

    PostgreSQL's JSON can hold neither NUL nor lone surrogates, and escape sequences must not reach
    a terminal.
    """
    if isinstance(value, str):
        value = value[: MAX_SHOWN + 1]  # never format a text of megabytes whole
    try:
        text = ascii(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


def message_of(error: BaseException) -> str:
    """An error's message, made safe to be part of another message as by `shown`."""
    return ascii(str(error) or type(error).__name__)[1:-1][:MAX_ERROR_CHARS]
