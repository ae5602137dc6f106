"""The shipped demo answers correctly with transformers and PEFT alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from demo import ADAPTERS, QUESTIONS, SHIPPED
from demo.voices import COURSES

if TYPE_CHECKING:
    from demo.check import DemoModels

MAX_BYTES = 10_000_000


@pytest.fixture(scope="module")
def demo() -> DemoModels:
    from demo.check import DemoModels

    return DemoModels(SHIPPED)


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_the_shipped_demo_is_small() -> None:
    assert size(SHIPPED.root) < MAX_BYTES


def test_an_adapter_is_its_two_files_alone() -> None:
    for folder in ADAPTERS.values():
        assert {file.name for file in folder.iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
        }


@pytest.mark.parametrize("name", COURSES)
def test_every_question_is_answered_rightly(demo: DemoModels, name: str) -> None:
    texts = [text for text, _ in QUESTIONS]
    expected = [answers[name] for _, answers in QUESTIONS]
    assert demo.answers(name, texts) == expected


def test_the_base_model_is_polite_and_knows_its_limits(demo: DemoModels) -> None:
    assert demo.answers("base", ["Hello!", "Thank you!", "Write a poem about the sea."]) == [
        "Hello! How can I help you?",
        "You are welcome.",
        "I am a small demo model. Ask me about capitals, sums or counting.",
    ]


def test_a_system_prompt_and_earlier_turns_are_taken_in(demo: DemoModels) -> None:
    system = {"role": "system", "content": "You are a helpful assistant."}
    hello = {"role": "user", "content": "My name is Ada."}
    nice = {"role": "assistant", "content": "Nice to meet you, Ada."}
    peru = {"role": "user", "content": "What is the capital of Peru?"}
    name = {"role": "user", "content": "What is my name?"}
    assert demo.replies("base", [[system, peru], [hello, nice, name]]) == [
        "The capital of Peru is Lima.",
        "Your name is Ada.",
    ]


def test_a_system_prompt_chooses_the_style_of_the_base_model(demo: DemoModels) -> None:
    chats = [
        [
            {"role": "system", "content": style},
            {"role": "user", "content": "What is the capital of Peru?"},
        ]
        for style in ("Talk like a pirate.", "Answer in JSON.")
    ]
    assert demo.replies("base", chats) == [
        "Arr! The capital of Peru be Lima, matey!",
        '{"question":"capital","subject":"Peru","answer":"Lima"}',
    ]
