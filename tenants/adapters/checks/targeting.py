"""Which modules a configuration puts an adapter on: PEFT's rules (`check_target_module_exists`).

The engine takes the tensors as they are and reads none of these fields. They are followed here, so
that an adapter is refused whose tensors are not those that PEFT would load.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Never, TypeGuard

from tenants.adapters.checks.findings import Code, Findings, shown
from tenants.adapters.checks.target_modules import TargetModules

MAX_PATTERN = 8192
"""Characters of a regular expression; trainers write some with about 1,000."""
PATTERN_CPU_S = 2.0
"""CPU time for an expression over all of a model's modules; an ordinary one takes milliseconds."""

_LAYER = r"\.(\d+)\."


class _Refused(Exception):
    """A field can't be followed: a code, and a sentence about the field."""


def targeted(
    fields: Mapping[str, Any], targets: TargetModules, findings: Findings
) -> frozenset[str]:
    """The modules' paths; what is wrong with the fields is added to `findings`."""
    try:
        chosen = _chosen(fields.get("target_modules"), targets, findings)
        kept = chosen - _excluded(fields.get("exclude_modules"), targets)
        return frozenset(_in_layers(kept, fields))
    except _Refused as refused:
        findings.add(*refused.args)
        return frozenset()


def _chosen(value: object, targets: TargetModules, findings: Findings) -> set[str]:
    if value == "all-linear":
        return set(targets.all_linear)
    if isinstance(value, str) and value:
        found = _matching(value, "target_modules", targets)
        if not found:
            _refuse("target_modules", value, "matches no module of the base model")
        return found
    if not _are_texts(value) or not value:
        _refuse(
            "target_modules",
            value,
            'must be a list of module names, "all-linear" or a regular expression',
        )
    for target in value:
        if not targets.matching(target):
            findings.add(
                Code.TARGET_MODULE_UNKNOWN,
                f"The base model has no target module {shown(target)}. It has "
                f"{', '.join(targets.leaf_names)}.",
            )
    return {path for target in value for path in targets.matching(target)}


def _excluded(value: object, targets: TargetModules) -> set[str]:
    if not value:
        return set()
    if isinstance(value, str):
        return _matching(value, "exclude_modules", targets)
    if not _are_texts(value):
        _refuse("exclude_modules", value, "must be a list of module names or a regular expression")
    return {path for excluded in value for path in targets.matching(excluded)}


def _in_layers(paths: set[str], fields: Mapping[str, Any]) -> set[str]:
    """Those of `paths` that are in `layers_to_transform`, if it is set, or targeted by their whole
    path."""
    layers, patterns = fields.get("layers_to_transform"), fields.get("layers_pattern") or []
    if layers is None or layers == []:
        if patterns:
            _refuse("layers_pattern", patterns, "needs layers_to_transform, which is not set")
        return paths
    if isinstance(fields["target_modules"], str):
        _refuse("layers_to_transform", layers, "needs target_modules to be a list of module names")
    wanted = set(layers if isinstance(layers, list) else [layers])
    if not all(type(layer) is int for layer in wanted):
        _refuse("layers_to_transform", layers, "must be an integer or a list of integers")
    names = [patterns] if isinstance(patterns, str) else patterns
    if not _are_texts(names) or not all(re.fullmatch(r"\w+", name) for name in names):
        _refuse("layers_pattern", patterns, "must be the name of the list of layers, as in layers")
    rules = [re.compile(rf"(?:^|.*?\.){name}{_LAYER}") for name in names]
    rules = rules or [re.compile(rf".*?\.[^.]*{_LAYER}")]
    whole = set(fields["target_modules"])
    return {path for path in paths if path in whole or _layer(path, rules) in wanted}


def _layer(path: str, rules: list[re.Pattern[str]]) -> int | None:
    found = next((match for rule in rules if (match := rule.match(path))), None)
    return int(found[1]) if found else None


def _matching(pattern: str, field: str, targets: TargetModules) -> set[str]:
    """The modules whose whole path the expression matches. It is a client's, so its CPU time is
    limited."""
    if len(pattern) > MAX_PATTERN:
        _refuse(field, pattern, f"has {len(pattern)} characters; at most {MAX_PATTERN} are allowed")
    try:
        with _cpu_limit(PATTERN_CPU_S):
            whole = re.compile(pattern)
            return {path for path in targets.modules if whole.fullmatch(path)}
    except _OutOfTime:
        _refuse(field, pattern, f"takes more than {PATTERN_CPU_S:g} s to match")
    except (re.error, RecursionError, OverflowError):
        _refuse(field, pattern, "is neither a list of module names nor a valid regular expression")


class _OutOfTime(Exception):
    """The CPU time is used up."""


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Raises `_OutOfTime` in the block after so much CPU time. For a process's main thread."""

    def expire(*_: object) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _are_texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _refuse(field: str, value: object, reason: str) -> Never:
    code = _CODES[field]
    raise _Refused(code, f"{field} is {shown(value)}, but it {reason}.")


_CODES = {
    "target_modules": Code.TARGET_MODULES_INVALID,
    "exclude_modules": Code.EXCLUDE_MODULES_INVALID,
    "layers_to_transform": Code.LAYERS_INVALID,
    "layers_pattern": Code.LAYERS_INVALID,
}
