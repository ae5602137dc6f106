"""Compares the outcomes of the same tests on the two servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

Outcome = tuple[str, str]
"""pytest's outcome of a test, and the last line of what went wrong."""
PASSED: Outcome = ("passed", "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcomes of one test."""

    test: str
    plain: str
    lorikeet: str
    reason: str
    """What went wrong on Lorikeet."""
    difference: str
    """The deliberate difference that explains it; empty if there is none."""

    @property
    def lacking(self) -> bool:
        """Whether plain vLLM passes it and Lorikeet does not."""
        return self.plain == "passed" and self.lorikeet != "passed"

    @property
    def unexplained(self) -> bool:
        return self.lacking and not self.difference


def compare(
    plain: Mapping[str, Outcome], lorikeet: Mapping[str, Outcome], differences: Mapping[str, str]
) -> list[Comparison]:
    """Each test that ran on plain vLLM, in its order. `differences` has the reason by a pattern of
    node ids."""
    compared = []
    for test, (outcome, _) in plain.items():
        ours, reason = lorikeet.get(test, ("did not run", ""))
        compared.append(Comparison(test, outcome, ours, reason, named(test, differences)))
    return compared


def named(test: str, differences: Mapping[str, str]) -> str:
    """The reason of the first pattern that matches the test."""
    return next((why for one, why in differences.items() if fnmatchcase(test, one)), "")


def idle(compared: list[Comparison], differences: Mapping[str, str]) -> list[str]:
    """The patterns that explain no test which Lorikeet lacks: they are to be deleted."""
    lacking = [one.test for one in compared if one.lacking]
    return [
        pattern
        for pattern in differences
        if not any(fnmatchcase(test, pattern) for test in lacking)
    ]
