"""How the outcomes on the two servers are compared."""

from __future__ import annotations

from tests.labs.endpoint.judging import PASSED, compare, idle

PLAIN = {"chat::a": PASSED, "chat::b": PASSED, "chat::c": ("failed", "no"), "chat::d": PASSED}
OURS = {"chat::a": PASSED, "chat::b": ("failed", "other"), "chat::c": PASSED}


def test_only_what_plain_passes_is_lacking() -> None:
    lacking = [one.test for one in compare(PLAIN, OURS, {}) if one.lacking]
    assert lacking == ["chat::b", "chat::d"]


def test_a_pattern_explains_a_difference() -> None:
    differences = {"*::b": "it is strict", "*::a": "never needed"}
    compared = compare(PLAIN, OURS, differences)
    assert [one.test for one in compared if one.unexplained] == ["chat::d"]
    assert [one.difference for one in compared if one.lacking] == ["it is strict", ""]
    assert idle(compared, differences) == ["*::a"]
