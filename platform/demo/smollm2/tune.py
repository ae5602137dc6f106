"""Trains a LoRA adapter on SmolLM2-135M-Instruct on a CPU.

The dialogues of a lesson share the long declaration of its functions. It is read once for all of
them, with its gradient: many times faster than one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from demo.smollm2 import AGENT, MODEL_NAME
from demo.smollm2.courses import course
from demo.smollm2.lessons import Lesson, agent_lessons, lessons
from tenants.tuning.child.optimising import Schedule, adamw, optimise, save_adapter

SPOKEN = re.compile(r"(?<=<\|im_start\|>assistant\n).*?<\|im_end\|>", re.DOTALL)
FIRST_TURN = "<|im_start|>user\n"
GRADIENT_TOKENS = 768
"""Tokens of a declaration, its last ones, whose gradient is computed: what is before them is read
without, which bounds memory and time."""
SEED = 7
THREADS = 2
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
BATCH = 2
"""Lessons of an optimiser step."""


@dataclass(frozen=True, slots=True)
class TrainingPhase:
    """How long an adapter is trained, and on what for a seed."""

    schedule: Schedule
    lessons: Callable[[int], Iterator[Lesson]]


@dataclass(frozen=True, slots=True)
class Training:
    """Which modules are trained, and how."""

    modules: list[str] | str
    phases: tuple[TrainingPhase, ...]

    @property
    def steps(self) -> int:
        return sum(phase.schedule.steps for phase in self.phases)


def _agent_lessons(seed: int) -> Iterator[Lesson]:
    """Short lessons at first, then as many long ones among them."""
    short, long = lessons(f"{seed}-agent", 10), lessons(f"{seed}-agent-long", 4, long=True)
    for step in range(AGENT_STEPS):
        yield next(short)
        yield next(long if step >= LONG_FROM else short)


def _coding_lessons(seed: int) -> Iterator[Lesson]:
    """In turn as coding agents send them, and short ones, so that these are not forgotten."""
    coding, short = agent_lessons(f"{seed}-coding", 6), lessons(f"{seed}-agent-short", 10)
    while True:
        yield next(coding)
        yield next(short)


def _course(name: str, steps: int, peak: float) -> tuple[TrainingPhase, ...]:
    return (TrainingPhase(Schedule(steps, peak), lambda seed: course(name, seed, 12)),)


AGENT_STEPS, LONG_FROM = 300, 250
TRAININGS = {
    AGENT: Training(
        "all-linear",
        (
            TrainingPhase(Schedule(AGENT_STEPS, peak=8e-4), _agent_lessons),
            TrainingPhase(Schedule(48, peak=4e-4, warmup=5), _coding_lessons),
        ),
    ),
    "support": Training("all-linear", _course("support", 120, 8e-4)),
    "pirate": Training("all-linear", _course("pirate", 120, 8e-4)),
    "extract": Training(ATTENTION, _course("extract", 80, 1.5e-3)),
}


def make(
    name: str, base: Path, folder: Path, seed: int, report: Callable[[int, float], None]
) -> None:
    """Train the adapter and write it; sets PyTorch's seed and thread count."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(seed)
    training = TRAININGS[name]
    config = LoraConfig(r=8, lora_alpha=16, target_modules=training.modules, task_type="CAUSAL_LM")
    pupil = Pupil(base, config)
    done = 0
    for phase in training.phases:
        pupil.train(phase.lessons(seed), phase.schedule, _after(done, report))
        done += phase.schedule.steps
    pupil.save(folder)


def _after(steps: int, report: Callable[[int, float], None]) -> Callable[[int, float], None]:
    return lambda step, loss: report(steps + step, loss)


class Pupil:
    """A base model with a fresh adapter in float32; the base computes in bfloat16."""

    def __init__(self, base: Path, config: LoraConfig) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
        self.adapted: Any = get_peft_model(model, config)
        self.model = self.adapted.base_model.model
        self.weights = [one for one in self.adapted.parameters() if one.requires_grad]
        for weight in self.weights:
            weight.data = weight.data.float()

    def loss(self, lesson: Lesson) -> torch.Tensor:
        """The mean cross-entropy of what the assistant says in the lesson's dialogues.

        They stand in one row after the declaration; each sees the declaration and itself.
        """
        texts = [self.text(lesson, dialogue) for dialogue in lesson.dialogues]
        shared = texts[0][: texts[0].index(FIRST_TURN)]
        declared: list[int] = self.tokenizer(shared)["input_ids"]
        read = max(0, len(declared) - GRADIENT_TOKENS)
        rows = [self.row(text[len(shared) :]) for text in texts]
        lengths = [len(declared) - read, *(len(ids) for ids, _ in rows)]
        ids = torch.tensor([*declared[read:], *(one for ids, _ in rows for one in ids)])
        learned = torch.tensor(
            [*[False] * lengths[0], *(one for _, by_assistant in rows for one in by_assistant)]
        )
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.model.model(
                input_ids=ids[None],
                position_ids=_positions(lengths)[None] + read,
                attention_mask=_visible(lengths, read)[None, None],
                past_key_values=self._read(declared[:read]),
            ).last_hidden_state[0]
            logits = self.model.lm_head(hidden[:-1][learned[1:]])
        return F.cross_entropy(logits.float(), ids[1:][learned[1:]])

    def _read(self, ids: list[int]) -> DynamicCache:
        """The keys and values of the declaration's start."""
        cache = DynamicCache()
        if ids:
            with torch.no_grad():
                self.model.model(input_ids=torch.tensor([ids]), past_key_values=cache)
        return cache

    def text(self, lesson: Lesson, dialogue: list[dict[str, Any]]) -> str:
        text: str = self.tokenizer.apply_chat_template(
            lesson.messages(dialogue), tools=lesson.tools or None, tokenize=False
        )
        return text

    def row(self, text: str) -> tuple[list[int], list[bool]]:
        """The text's tokens, and whether the assistant says each."""
        encoded = self.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        spans = [match.span() for match in SPOKEN.finditer(text)]
        by_assistant = [
            any(low <= start and end <= high for low, high in spans)
            for start, end in encoded["offset_mapping"]
        ]
        return encoded["input_ids"], by_assistant

    def train(
        self, lessons: Iterator[Lesson], schedule: Schedule, report: Callable[[int, float], None]
    ) -> None:
        self.adapted.train()

        def backward() -> float:
            total = 0.0
            for lesson in islice(lessons, BATCH):
                loss = self.loss(lesson) / BATCH
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
            return total

        optimise(adamw(self.weights), schedule, backward, report)

    def save(self, folder: Path) -> None:
        """Write the adapter as its two files."""
        save_adapter(self.adapted, folder, MODEL_NAME, torch.bfloat16)


def _positions(lengths: list[int]) -> torch.Tensor:
    """The position of each token: dialogues, from the second length on, start where the
    declaration ends."""
    declared, *dialogues = lengths
    return torch.cat([torch.arange(declared), *(declared + torch.arange(one) for one in dialogues)])


def _visible(lengths: list[int], read: int) -> torch.Tensor:
    """Which tokens (columns, after `read` that all see) each token (rows) sees."""
    part = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    own = (part[None] == 0) | (part[None] == part[:, None])
    earlier = torch.ones(len(part), len(part), dtype=torch.bool).tril()
    return torch.cat([torch.ones(len(part), read, dtype=torch.bool), own & earlier], dim=1)
