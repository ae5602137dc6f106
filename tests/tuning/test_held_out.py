"""Which rows of a validation file are asked, and what is expected."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tenants.tuning.child.held_out import HeldOutRows, select
from tenants.tuning_states import DPO, SUPERVISED, Method
from tests.tuning.rows import dialogue, jsonl

pytestmark = pytest.mark.pure

ANSWER = {"role": "assistant", "content": "Ahoy!"}
USER = {"role": "user", "content": "Hi"}


def selected(
    held: Sequence[Any],
    trained: Sequence[Any] = (),
    method: Method = SUPERVISED,
    most: int = 50,
) -> tuple[HeldOutRows, list[dict[str, Any]]]:
    out = io.BytesIO()
    found = select(io.BytesIO(jsonl(held)), io.BytesIO(jsonl(trained)), method, most, out)
    return found, [json.loads(line)["item"] for line in out.getvalue().splitlines()]


def test_the_last_learned_answer_is_expected_after_what_comes_before_it() -> None:
    first = {"role": "assistant", "content": "Yes?"}
    late = {"role": "assistant", "content": "Unlearned.", "weight": 0}
    parts = {"role": "user", "content": [{"type": "text", "text": "Who?"}]}
    row = {"messages": [USER, first, parts, ANSWER | {"weight": 1}, late]}
    found, [item] = selected([row])
    assert item == {
        "messages": [USER, first, {"role": "user", "content": "Who?"}],
        "expected": "Ahoy!",
    }
    assert found == HeldOutRows(written=1, usable=1)


def test_rows_that_were_trained_on_are_left_out_however_they_are_written() -> None:
    same = dialogue("A?", "A.")
    spaced = {"messages": [dict(reversed(one.items())) for one in same["messages"]]}
    found, items = selected([same, dialogue("B?", "B.")], [spaced])
    assert [item["expected"] for item in items] == ["B."]
    assert found == HeldOutRows(written=1, usable=1, trained=1)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ANSWER]},
        {"messages": [USER, ANSWER | {"content": ""}]},
        {**dialogue(), "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "{}"}}]}]},
    ],
)  # fmt: skip
def test_rows_that_cannot_be_asked(row: Any) -> None:
    assert selected([row]) == (HeldOutRows(unusable=1), [])


def test_of_many_rows_the_same_ones_are_drawn_in_their_order() -> None:
    rows = [dialogue(f"{n}?", f"{n}.") for n in range(200)]
    found, items = selected(rows, most=10)
    numbers = [int(item["expected"][:-1]) for item in items]
    assert found == HeldOutRows(written=10, usable=200)
    assert numbers == sorted(set(numbers)) and numbers[-1] > 50, "not only the first ones"
    assert selected(rows, most=10)[1] == items


def test_of_preferences_the_preferred_output_is_expected() -> None:
    row = {
        "input": {"messages": [USER, ANSWER, USER]},
        "preferred_output": [{"role": "assistant", "content": "At pier 3!"}],
        "non_preferred_output": [{"role": "assistant", "content": "No."}],
    }
    _, [item] = selected([row], method=DPO)
    assert item == {"messages": [USER, ANSWER, USER], "expected": "At pier 3!"}
