"""Asks a trained adapter its questions with transformers and PEFT, without serving it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.smollm2.cases import QUESTIONS, TOOLS, Case

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
MAX_TOKENS = 80


@dataclass(frozen=True, slots=True)
class Examined:
    """A question, the greedy answer, and whether it is right."""

    question: str
    text: str
    right: bool


def examine(base: Path, adapter: Path, name: str) -> list[Examined]:
    """Ask the adapter in this folder the questions for the adapter `name`."""
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted: Any = PeftModel.from_pretrained(model, adapter).eval()
    return [_examined(tokenizer, adapted, case) for case in QUESTIONS[name]]


def _examined(tokenizer: Any, adapted: Any, case: Case) -> Examined:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": case.question}],
        tools=[TOOLS[name] for name in case.tools] or None,
        add_generation_prompt=True, return_tensors="pt", return_dict=True,
    )  # fmt: skip
    with torch.no_grad():
        output = adapted.generate(**prompt, max_new_tokens=MAX_TOKENS, do_sample=False)
    answer = output[0, prompt["input_ids"].shape[1] :]
    text: str = tokenizer.decode(answer, skip_special_tokens=True)
    return Examined(case.question, text, case.right(text, list(_calls(text))))


def _calls(text: str) -> Iterator[tuple[str, Any]]:
    """The function and arguments of each call; a broken one has no name."""
    for content in CALL.findall(text):
        try:
            call = json.loads(content)
            yield call["name"], call["arguments"]
        except (ValueError, KeyError, TypeError):
            yield "", content
