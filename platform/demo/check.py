"""Asks a trained demo its questions with transformers and PEFT, without serving it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo import QUESTIONS, Artefacts


@dataclass(frozen=True, slots=True)
class Answered:
    """What one model ("base" or an adapter) answered to a question, and the right answer."""

    model: str
    question: str
    expected: str
    answer: str

    @property
    def right(self) -> bool:
        return self.answer == self.expected


class DemoModels:
    """The base model in float32 with every adapter attached."""

    def __init__(self, artefacts: Artefacts) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(artefacts.base, padding_side="left")
        base = AutoModelForCausalLM.from_pretrained(artefacts.base, dtype=torch.float32)
        (first, folder), *others = artefacts.adapters.items()
        self.model: Any = PeftModel.from_pretrained(base, folder, adapter_name=first)
        for name, folder in others:
            self.model.load_adapter(folder, adapter_name=name)
        self.model.eval()

    def answers(self, model: str, questions: Sequence[str], max_tokens: int = 80) -> list[str]:
        """Greedy answers of "base" or of an adapter, one per question, each asked on its own."""
        return self.replies(
            model, [[{"role": "user", "content": text}] for text in questions], max_tokens
        )

    def replies(
        self, model: str, chats: Sequence[list[dict[str, str]]], max_tokens: int = 80
    ) -> list[str]:
        """The greedy next message of each chat."""
        prompts = self.tokenizer.apply_chat_template(
            list(chats),
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        if model == "base":
            with self.model.disable_adapter():
                output = self._generate(prompts, max_tokens)
        else:
            self.model.set_adapter(model)
            output = self._generate(prompts, max_tokens)
        return list(self.tokenizer.batch_decode(output, skip_special_tokens=True))

    def _generate(self, prompts: Any, max_tokens: int) -> torch.Tensor:
        with torch.no_grad():
            output: torch.Tensor = self.model.generate(
                **prompts, max_new_tokens=max_tokens, do_sample=False, temperature=None
            )
        return output[:, prompts["input_ids"].shape[1] :]


def examine(artefacts: Artefacts) -> list[Answered]:
    """Ask the base model and each adapter every one of QUESTIONS."""
    demo = DemoModels(artefacts)
    texts = [text for text, _ in QUESTIONS]
    return [
        Answered(model, text, expected[model], answer)
        for model in ("base", *artefacts.adapters)
        for (text, expected), answer in zip(QUESTIONS, demo.answers(model, texts), strict=True)
    ]
