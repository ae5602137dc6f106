"""Both formats of traces, with lines of the public ones and with bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.load.callers import LoadCaller
from inference.load.planned import BadLoadPlan
from inference.load.scenarios import CallerChoice, replay
from inference.load.traces import MAX_LINE_BYTES, TraceRow, read_trace

EXCERPTS = Path(__file__).parent / "excerpts"
GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}'
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
CHOICE = CallerChoice([LoadCaller(f"t{i}", ("a", "b", "c")) for i in range(9)], 0.0, 0.0)


def test_mooncake() -> None:
    rows = list(read_trace(EXCERPTS / "mooncake_conversation.jsonl"))
    assert len(rows) == 13
    assert rows[0] == TraceRow(0.0, 6758, 500, tuple(range(14)))
    assert [row.at_s for row in rows[-3:]] == [3.0, 21.0, 48.0]
    assert rows[-1].blocks[:5] == rows[-2].blocks[:5] == (0, 1541, 1542, 1543, 1544)
    assert list(read_trace(EXCERPTS / "mooncake_conversation.jsonl", 2)) == rows[:2]


def test_azure() -> None:
    rows = list(read_trace(EXCERPTS / "azure_conversation.csv"))
    assert [(row.prompt_tokens, row.output_tokens) for row in rows[:2]] == [(374, 44), (396, 109)]
    assert rows[0].at_s == 0 and rows[1].at_s == pytest.approx(4.314579)
    assert len(rows) == 7 and rows[0].blocks == ()
    assert len(list(read_trace(EXCERPTS / "azure_code.csv", 3))) == 3


def test_azure_of_2024_has_a_zone(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(
        f"{HEADER}\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:01+02:00,7,1"
    )
    assert [round(row.at_s, 3) for row in read_trace(file)] == [0.0, 0.990]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("{", "line 2: Input data was truncated"),
        ('{"timestamp": 0}', "line 2: Object missing required field `input_length`"),
        (GOOD.replace("600", '"600"'), r"line 2: Expected `int`, got `str` - at `\$.input_length`"),
        (GOOD.replace("600", "-1"), "line 2: input_length is -1: it must be from 0 to 10000000"),
        (GOOD.replace(": 5", ": 1e9"), r"line 2: .*output_length"),
        (GOOD.replace("[0, 1]", "[0]"), "line 2: hash_ids has 1 ids: 600 tokens are 2 blocks of"),
        (GOOD.replace('p": 0', 'p": -5'), "line 2: timestamp is -5.0: it must be from 0"),
        ("x" * (MAX_LINE_BYTES + 1), "line 2: is longer than 1048576 bytes"),
        ("\udcff", "line 2: "),
    ],
)
def test_bad_lines_of_mooncake_are_named(tmp_path: Path, second: str, said: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(f"{GOOD}\n{second}\n".encode(errors="surrogateescape"))
    with pytest.raises(BadLoadPlan, match=f"{file}, {said}"):
        list(read_trace(file))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("TIMESTAMP,ContextTokens", "line 1: the columns must be TIMESTAMP,Context"),
        (f"{HEADER}\n2023-11-16,5", "line 2: has 2 columns: there must be 3"),
        (f"{HEADER}\nnoon,5,5", "line 2: TIMESTAMP is 'noon': it must be a date and time"),
        (f"{HEADER}\n2023-11-16,5,x", "line 2: GeneratedTokens is 'x': it must be a number of"),
        (
            f"{HEADER}\n2023-11-16,99999999,1",
            "line 2: ContextTokens is 99999999: it must be from 0",
        ),
        (f"{HEADER}\n2023-11-16,5,1\n2023-11-15,5,1", "line 3: its time is before that of the"),
        (HEADER, "has no requests"),
        ("", "has no requests"),
    ],
)
def test_bad_lines_of_azure_are_named(tmp_path: Path, lines: str, said: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(lines)
    with pytest.raises(BadLoadPlan, match=said):
        list(read_trace(file))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadLoadPlan, match=r"none.csv can't be read"):
        list(read_trace(tmp_path / "none.csv"))


def test_a_replay_keeps_times_lengths_and_shared_prefixes() -> None:
    rows = list(read_trace(EXCERPTS / "mooncake_conversation.jsonl"))
    found = list(replay(rows, CHOICE))
    assert [one.at_s for one in found] == [row.at_s for row in rows]
    assert [one.prompt_tokens for one in found] == [row.prompt_tokens for row in rows]
    one, other = found[-2:]
    assert one.pieces[:5] == other.pieces[:5] and one.pieces[5] != other.pieces[5]
    assert (one.tenant, one.model) == (other.tenant, other.model), "a conversation is one tenant's"
    assert len({(each.tenant, each.model) for each in found}) > 5, "the system prompt is not"


def test_a_replay_can_be_faster_and_smaller() -> None:
    rows = list(read_trace(EXCERPTS / "mooncake_conversation.jsonl"))
    found = list(replay(rows, CHOICE, speed=3.0, shrink=16, longest=400))
    assert found[-1].at_s == 16.0
    assert found[0].pieces[0] == (0, 32) and found[0].output_tokens == 500 // 16
    assert max(one.prompt_tokens for one in found) == 400
    assert found[-1].pieces[:5] == found[-2].pieces[:5]
    assert found[-1].prompt_tokens == 3024 // 16


def test_azures_prompts_share_nothing() -> None:
    found = list(replay(read_trace(EXCERPTS / "azure_conversation.csv"), CHOICE))
    assert len({one.pieces for one in found}) == 7
    assert [one.prompt_tokens for one in found][:2] == [374, 396]
