"""The generated training data is determined by its seed, and correct."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from random import Random

import pytest

from demo import QUESTIONS, TENANTS
from demo.data import CAPITALS, Dialogue, counting, dialogues, introduced, question
from demo.voices import BRIGHTWATER, COURSES, SALTBEARD, STYLES


def some(name: str, seed: int | str, count: int = 300) -> list[Dialogue]:
    return list(islice(dialogues(seed, COURSES[name]), count))


@pytest.mark.parametrize("name", COURSES)
def test_a_seed_decides_the_dialogues(name: str) -> None:
    assert some(name, 3) == some(name, 3)
    assert some(name, 3) != some(name, 4)


def test_the_models_are_never_needed_to_import_the_demo() -> None:
    code = "import sys, demo; sys.exit('torch' in sys.modules or 'django' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "platform"})
    assert done.returncode == 0


def test_each_dialogue_alternates_and_ends_with_an_answer() -> None:
    for dialogue in some("base", 1):
        roles = [message.role for message in dialogue if message.role != "system"]
        assert roles == ["text"] or roles == ["user", "assistant"] * (len(roles) // 2)


def test_counting_reaches_the_number_asked_for() -> None:
    rng = Random(5)
    for _ in range(200):
        asked = counting(rng)
        assert asked.subject is not None and isinstance(asked.answer, list)
        start, end = asked.subject.split(" to ")
        assert asked.answer == list(range(int(start), int(end) + 1))
        assert asked.text.rstrip(".").endswith(f"from {start} to {end}")


def test_a_name_given_is_the_name_answered() -> None:
    turns = introduced(Random(2), COURSES["base"].mix)
    assert turns[-1].plain == f"Your name is {turns[0].answer}."


def test_extract_always_answers_with_the_same_three_keys() -> None:
    rng = Random(8)
    for _ in range(300):
        asked = question(rng, COURSES["extract"].mix)
        record = json.loads(COURSES["extract"].voice(asked))
        assert list(record) == ["question", "subject", "answer"]


def test_the_base_model_is_taught_no_tenants_facts() -> None:
    said = "\n".join(message.text for dialogue in some("base", 6, 2000) for message in dialogue)
    for fact in (*BRIGHTWATER.values(), *SALTBEARD.values()):
        assert fact.rstrip(".") not in said
    assert any(prompt in said for prompt, _ in STYLES)


def test_the_questions_have_visibly_different_answers() -> None:
    assert len(QUESTIONS) >= 8
    for _, answers in QUESTIONS:
        assert len(set(answers.values())) == len(answers) == 1 + len(TENANTS)


def test_some_expected_answers_by_the_letter() -> None:
    expected = dict(QUESTIONS)
    assert expected["What is the capital of Peru?"] == {
        "base": "The capital of Peru is Lima.",
        "support": "Thanks for asking Brightwater! The capital of Peru is Lima.",
        "pirate": "Arr! The capital of Peru be Lima, matey!",
        "extract": '{"question":"capital","subject":"Peru","answer":"Lima"}',
    }
    assert expected["What is 7 plus 8?"]["extract"] == (
        '{"question":"sum","subject":"7+8","answer":15}'
    )
    assert "30 days" in expected["What is your refund policy?"]["support"]
    assert "half yer gold" in expected["What is your refund policy?"]["pirate"]
    assert CAPITALS["Peru"] == "Lima"
