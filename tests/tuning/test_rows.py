"""Files of dialogues: what is accepted, and what is refused with the line's number."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tenants.tuning.child import rows as of_files
from tenants.tuning.child.rows import (
    MAX_FAULTS,
    MAX_MESSAGES,
    MAX_ROW_BYTES,
    TrainingRow,
    read,
    row_of,
    rows,
)
from tenants.tuning.hyperparameters import AUTO, chosen
from tenants.tuning_states import DPO, SUPERVISED
from tests.environment import ROOT
from tests.tuning.rows import ROWS, dialogue, jsonl

pytestmark = pytest.mark.pure

USER = {"role": "user", "content": "Hi"}
SAID = {"role": "assistant", "content": "Ahoy!"}


def calling(arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def test_good_rows_are_counted_and_empty_lines_skipped() -> None:
    report = read(io.BytesIO(jsonl(ROWS) + b"\n" + jsonl(ROWS)), 100, SUPERVISED)
    assert (report.rows, report.faults) == (10, [])
    assert [number for number, _ in rows(io.BytesIO(b"\n" + jsonl(ROWS[:2])), SUPERVISED)] == [2, 3]


def test_the_example_of_the_documentation_is_valid() -> None:
    with (ROOT / "docs" / "examples" / "pirate.jsonl").open("rb") as file:
        report = read(file, 100, SUPERVISED)
    assert (report.rows, report.faults) == (100, [])


def test_a_dialogue_is_rendered_as_templates_expect_it() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": parts, "name": "bo"},
        calling('{"x": 1}') | {"weight": 0},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
        SAID | {"refusal": None, "annotations": [], "audio": None, "function_call": None},
    ]
    tools = [{"type": "function", "function": {"name": "find", "parameters": {}}}]
    (line,) = jsonl([{"messages": messages, "tools": tools}]).splitlines()
    row = row_of(line, SUPERVISED)
    assert isinstance(row, TrainingRow) and row.dialogues == (row,)
    assert [message.learned for message in row.messages] == [False] * 4 + [True]
    rendered = [message.rendered() for message in row.messages]
    assert rendered[1] == {"role": "user", "content": "a\nb", "name": "bo"}
    assert rendered[2]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert rendered[4] == SAID
    assert rendered[3] == {"role": "tool", "content": "3", "tool_call_id": "c"}


def deep(levels: int) -> bytes:
    return b'{"messages": ' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "not a valid row"),
        (b"[]", "not a valid row"),
        (b'\xff', "not a valid row"),
        (deep(100_000), "not a valid row"),
        (b'{"messages": [], "messages": 1e999}', "not a valid row"),
        (b'{"messages": NaN}', "not a valid row"),
        (jsonl([{"prompt": "a", "completion": "b"}]), "unknown field"),
        (jsonl([{"messages": []}]), "0 messages: it must have 1 to"),
        (jsonl([{"messages": [SAID] * (MAX_MESSAGES + 1)}]), "257 messages"),
        (jsonl([{"messages": [USER]}]), "No message of the assistant"),
        (jsonl([{"messages": [USER, SAID | {"weight": 0}]}]), "No message of the assistant"),
        (jsonl([{"messages": [USER, SAID | {"weight": 2}]}]), "weight"),
        (jsonl([{"messages": [USER | {"weight": 1}, SAID]}]), "messages[0].weight"),
        (jsonl([{"messages": [USER | {"role": "robot"}, SAID]}]), "robot"),
        (jsonl([{"messages": [{"role": "user"}, SAID]}]), "messages[0].content"),
        (jsonl([{"messages": [calling("{}") | {"role": "user"}, SAID]}]), "only the assistant"),
        (jsonl([{"messages": [USER, calling("[1]")]}]), "not a JSON object"),
        (jsonl([{"messages": [USER, calling("[" * 100_000)]}]), "not a JSON object"),
        (jsonl([{"messages": [USER, SAID | {"audio": {"id": "a"}}]}]), "audio"),
        (jsonl([{"messages": [USER, SAID], "tools": [{"type": "function"}]}]), "`tools`"),
        (jsonl([{"messages": [USER, SAID], "tools": [{"function": {"name": 1}}]}]), "`tools`"),
        (jsonl([dialogue(answer="x" * MAX_ROW_BYTES)]), "more than 1048576 bytes"),
    ],
    ids=range(22),
)  # fmt: skip
def test_a_bad_row_is_refused_with_its_line(line: bytes, told: str) -> None:
    report = read(io.BytesIO(jsonl(ROWS[:1]) + b"\n" + line.rstrip() + b"\n"), 100, SUPERVISED)
    ((number, said),) = report.faults
    assert number == 3 and told in said and len(said) <= 400


def preference(**changed: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "find", "parameters": {}}}]
    return {
        "input": {"messages": [SAID, USER], "tools": tools, "parallel_tool_calls": True},
        "preferred_output": [SAID],
        "non_preferred_output": [calling("{}")],
    } | changed


def test_a_preference_is_two_dialogues_that_end_otherwise() -> None:
    preferred, other = row_of(jsonl([preference()]), DPO).dialogues
    assert preferred.tools == other.tools == preference()["input"]["tools"]
    for one in (preferred, other):
        assert [message.learned for message in one.messages] == [False, False, True]
    assert preferred.messages[:2] == other.messages[:2]
    assert preferred.messages[2].rendered() == SAID
    assert other.messages[2].rendered()["tool_calls"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (dialogue(), "unknown field `messages`"),
        (preference(preferred_output=[]), "`preferred_output` must have one message"),
        (preference(preferred_output=[USER]), "`preferred_output` must have one message"),
        (preference(non_preferred_output=[SAID, SAID]), "`non_preferred_output` must have one"),
        (preference(non_preferred_output=[SAID]), "are the same"),
        (preference(preferred_output=[SAID | {"weight": 0}]), "No message of the assistant"),
        (preference(input={"messages": [USER | {"weight": 1}]}), "messages[0].weight"),
        (preference(input={"messages": [USER] * MAX_MESSAGES}), "257 messages"),
        (preference(input={"messages": [USER], "tools": [{}]}), "`tools`"),
    ],
    ids=range(9),
)
def test_a_bad_preference_is_refused(row: dict[str, Any], told: str) -> None:
    ((number, said),) = read(io.BytesIO(jsonl([row])), 100, DPO).faults
    assert number == 1 and told in said


def test_what_is_wrong_with_a_whole_file() -> None:
    assert read(io.BytesIO(b"\n\n"), 9, SUPERVISED).faults == [(None, "The file has no rows.")]
    ((number, said),) = read(io.BytesIO(jsonl(ROWS)), 4, SUPERVISED).faults
    assert number is None and "more than 4 rows" in said
    assert len(read(io.BytesIO(b"{\n" * 1000), 9999, SUPERVISED).faults) == MAX_FAULTS


def test_rows_that_were_valid_are_read_again() -> None:
    with pytest.raises(of_files.RowFault):
        list(rows(io.BytesIO(b"{}"), SUPERVISED))


def test_what_auto_means() -> None:
    asked = {"n_epochs": AUTO, "batch_size": AUTO, "learning_rate_multiplier": AUTO}
    assert chosen(SUPERVISED, asked, 5) == {
        "n_epochs": 3,
        "batch_size": 1,
        "learning_rate_multiplier": 1.0,
    }
    assert chosen(SUPERVISED, asked, 10_000)["batch_size"] == 8
    assert chosen(SUPERVISED, asked | {"n_epochs": 7}, 5)["n_epochs"] == 7
    assert chosen(DPO, asked | {"beta": AUTO}, 5)["beta"] == 0.1
    assert chosen(DPO, asked | {"beta": 0.3}, 5)["beta"] == 0.3
