"""Trains the demo: one small Llama on plain answers, then a LoRA adapter for each tenant.

The seed decides everything: training is counted in steps, never in seconds, and PyTorch gets a
fixed number of threads (sums in another order round differently).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from demo import MODEL_NAME, Artefacts
from demo.data import dialogues
from demo.tokenizer import CONTEXT, DemoExample, train_tokenizer
from demo.voices import COURSES
from tenants.tuning.child.optimising import Schedule, adamw, optimise, save_adapter

SEED = 7
THREADS = 1
BATCH_TOKENS = 1024
POOL = 512
"""Examples sorted by length at a time, so that a batch holds little padding."""
STORED = torch.float16
"""Half the size of float32 in the repository; the models are served in float32."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How long each model is trained; the order of `adapters` is the order of training."""

    base: Schedule
    adapters: dict[str, Schedule]

    @property
    def steps(self) -> dict[str, int]:
        """Optimiser steps of each model by its name."""
        return {"base": self.base.steps} | {
            name: schedule.steps for name, schedule in self.adapters.items()
        }


PLAN = TrainingPlan(
    base=Schedule(1100, peak=1.5e-3),
    adapters={
        "support": Schedule(160, peak=8e-3),
        "pirate": Schedule(160, peak=8e-3),
        "extract": Schedule(130, peak=5e-3),
    },
)


Report = Callable[[str, int, float], None]
"""Called after each step with the stage's name, the steps done and the loss."""


def make(artefacts: Artefacts, seed: int, plan: TrainingPlan, report: Report) -> None:
    """Train everything and write it under `artefacts`; sets PyTorch's seed and thread count."""
    torch.set_num_threads(THREADS)
    tokenizer = make_tokenizer(seed)
    make_base(artefacts.base, tokenizer, seed, plan.base, report)
    for name, schedule in plan.adapters.items():
        make_adapter(artefacts, name, seed, schedule, report)


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """A tokenizer that has seen every voice."""
    texts = (
        message.text
        for course in COURSES.values()
        for dialogue in islice(dialogues(f"{seed}-tokenizer", course), 4000)
        for message in dialogue
    )
    return train_tokenizer(texts)


def make_base(
    folder: Path, tokenizer: PreTrainedTokenizerFast, seed: int, schedule: Schedule, report: Report
) -> None:
    """Train the base model and save it with its tokenizer."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config(tokenizer))
    train(model, batches(tokenizer, "base", seed), schedule, _stage(report, "base"))
    model.to(STORED)
    model.generation_config = generation_config(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    declare_float32(folder / "config.json")


def make_adapter(
    artefacts: Artefacts, name: str, seed: int, schedule: Schedule, report: Report
) -> None:
    """Train the adapter `name` on the base model as it is stored, rounding included."""
    torch.manual_seed(seed)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(artefacts.base)
    model = LlamaForCausalLM.from_pretrained(artefacts.base, dtype=torch.float32)
    adapted = get_peft_model(model, lora_config())
    train(model, batches(tokenizer, name, seed), schedule, _stage(report, name))
    save_adapter(adapted, artefacts.adapters[name], MODEL_NAME, STORED)


def llama_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Three million parameters."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        initializer_range=0.06,  # about 1 / sqrt(hidden_size); 0.02 learns twice as slowly
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def generation_config(tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """Sampling that suits a model this small when a request says nothing."""
    return GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
        temperature=0.2,
    )


def lora_config() -> LoraConfig:
    """Rank 8 on every linear layer."""
    return LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=[
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ],
        task_type="CAUSAL_LM",
    )


Batch = tuple[torch.Tensor, torch.Tensor]
"""Token ids (rows, length), padded on the right, and which of them are learned."""


def batches(tokenizer: PreTrainedTokenizerFast, name: str, seed: int) -> Iterator[Batch]:
    """Endless batches of about BATCH_TOKENS for one voice, with rows of similar length together."""
    rng = Random(f"{seed}-{name}-batches")
    stream = dialogues(f"{seed}-{name}", COURSES[name])
    while True:
        pool = sorted(
            (DemoExample(tokenizer, dialogue) for dialogue in islice(stream, POOL)),
            key=lambda example: len(example.ids),
        )
        groups = list(_by_tokens(pool))
        rng.shuffle(groups)
        yield from (_padded(group, tokenizer.pad_token_id) for group in groups)


def _by_tokens(pool: list[DemoExample]) -> Iterator[list[DemoExample]]:
    """Cut examples, shortest first, into groups whose padded size stays within BATCH_TOKENS."""
    group: list[DemoExample] = []
    for example in pool:
        if group and len(example.ids) * (len(group) + 1) > BATCH_TOKENS:
            yield group
            group = []
        group.append(example)
    yield group


def _padded(group: list[DemoExample], pad: int) -> Batch:
    length = max(len(example.ids) for example in group)
    ids = [example.ids + [pad] * (length - len(example.ids)) for example in group]
    learned = [example.learned + [False] * (length - len(example.ids)) for example in group]
    return torch.tensor(ids), torch.tensor(learned)


def train(
    model: Any, examples: Iterator[Batch], schedule: Schedule, report: Callable[[int, float], None]
) -> None:
    """Train the parameters of `model` that require a gradient."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    model.train()

    def backward() -> float:
        loss = answer_loss(model, *next(examples))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    optimise(adamw(weights), schedule, backward, report)


def answer_loss(model: Any, ids: torch.Tensor, learned: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over the learned tokens only.

    Needs no attention mask: padding is on the right, where a causal model never looks.
    """
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    wanted = learned[:, 1:]
    return F.cross_entropy(model.lm_head(hidden[:, :-1][wanted]), ids[:, 1:][wanted])


def _stage(report: Report, name: str) -> Callable[[int, float], None]:
    return lambda done, loss: report(name, done, loss)


def declare_float32(config: Path) -> None:
    """Declare float32 in the file, so that loaders compute in it: float16 is for storage only."""
    settings = json.loads(config.read_text())
    settings["dtype"] = "float32"
    config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
