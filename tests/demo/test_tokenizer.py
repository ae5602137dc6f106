"""The shipped tokenizer and its chat template."""

from __future__ import annotations

from itertools import islice
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo import BASE
from demo.data import dialogues
from demo.voices import COURSES


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(BASE)


def test_the_template_renders_each_role(tokenizer: Any) -> None:
    chat = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye"},
    ]
    assert tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == (
        "<|bos|><|system|>Answer briefly.<|user|>Hello!<|assistant|>Hi.<|eos|><|user|>Bye"
        "<|assistant|>"
    )
    assert tokenizer.apply_chat_template(chat[:2], tokenize=False) == (
        "<|bos|><|system|>Answer briefly.<|user|>Hello!"
    )


def test_the_developer_role_is_the_system_role(tokenizer: Any) -> None:
    chat = [{"role": "developer", "content": "Answer briefly."}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    assert rendered == "<|bos|><|system|>Answer briefly."


def test_the_template_renders_tools_and_what_came_of_them(tokenizer: Any) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("now", "weather")]
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Lima"}}}
    chat = [
        {"role": "user", "content": "How is Lima?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "Sunny", "tool_call_id": "1"},
    ]
    assert tokenizer.apply_chat_template(
        chat, tools=tools, tokenize=False, add_generation_prompt=True
    ) == (
        "<|bos|><|system|>Tools: now, weather.<|user|>How is Lima?<|assistant|>"
        '<tool_call>{"name": "weather", "arguments": {"city": "Lima"}}</tool_call><|eos|>'
        "<|user|>Sunny<|assistant|>"
    )


def test_other_roles_are_refused(tokenizer: Any) -> None:
    with pytest.raises(jinja2.TemplateError, match="Only the roles"):
        tokenizer.apply_chat_template([{"role": "wizard", "content": "x"}], tokenize=False)


def test_training_sees_the_tokens_that_the_template_gives(tokenizer: Any) -> None:
    from demo.tokenizer import DemoExample

    for dialogue in islice(dialogues(1, COURSES["base"]), 50):
        if dialogue[0].role == "text":
            continue
        chat = [{"role": message.role, "content": message.text} for message in dialogue]
        rendered = tokenizer.apply_chat_template(chat, return_dict=False)
        assert DemoExample(tokenizer, dialogue).ids == rendered


def test_training_learns_answers_alone(tokenizer: Any) -> None:
    from demo.tokenizer import DemoExample

    for dialogue in islice(dialogues(2, COURSES["base"]), 50):
        example = DemoExample(tokenizer, dialogue)
        pairs = zip(example.ids, example.learned, strict=True)
        said = "".join(m.text + "<|eos|>" for m in dialogue if m.role in ("assistant", "text"))
        assert tokenizer.decode([token for token, learned in pairs if learned]) == said


@given(st.text())
def test_any_text_has_tokens_and_comes_back(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if not any(special in text for special in tokenizer.all_special_tokens):
        assert tokenizer.decode(ids) == text


def test_text_for_completions_begins_with_bos(tokenizer: Any) -> None:
    assert tokenizer.encode("The capital")[0] == tokenizer.bos_token_id


def test_the_context_is_declared(tokenizer: Any) -> None:
    from demo.tokenizer import CONTEXT

    assert tokenizer.model_max_length == CONTEXT
