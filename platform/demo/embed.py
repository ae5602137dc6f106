"""Trains the demo's embedding model: a Llama of half a million parameters that outputs a vector.

The vector is the last layer's output at the text's last token, normalised to length 1, as in most
embedding models made from a language model. Its leading numbers can be used alone (`dimensions`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo.pairs import PURPOSES, THINGS, Meaning, batches, examination
from demo.tokenizer import BOS, EOS, train_tokenizer
from demo.train import STORED, THREADS, declare_float32
from tenants.tuning.child.optimising import Schedule, adamw, optimise

CONTEXT = 512
DIMENSIONS = (128, 64, 32)
SCHEDULE = Schedule(500, peak=3e-3)
PURPOSES_AT_ONCE, THINGS_AT_ONCE = 6, 8
"""Purposes and things in a batch, which make about forty pairs."""
TEMPERATURE = 0.05
"""Temperature of the contrastive loss."""


def make(folder: Path, seed: int, schedule: Schedule, report: Callable[[int, float], None]) -> None:
    """Train the model and write it to the folder; sets PyTorch's seed and thread count."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(seed)
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(llama_config(tokenizer))
    _train(model, tokenizer, seed, schedule, report)
    model.to(STORED)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _declare(folder)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that ends each text with the token whose position yields the vector."""
    meanings = (Meaning(purpose, thing) for purpose in PURPOSES for thing in THINGS)
    texts = (one.wording(way) for one in meanings for way in range(len(PURPOSES[one.purpose])))
    tokenizer = train_tokenizer(texts)
    inner = tokenizer.backend_tokenizer
    ends = [(name, inner.token_to_id(name)) for name in (BOS, EOS)]
    inner.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}", special_tokens=ends
    )
    tokenizer.chat_template = None
    tokenizer.model_max_length = CONTEXT
    return tokenizer


def llama_config(tokenizer: PreTrainedTokenizerFast) -> LlamaConfig:
    """Half a million parameters."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=DIMENSIONS[0],
        intermediate_size=344,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=0.08,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def vectors(model: Any, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> torch.Tensor:
    """The vectors of the texts (texts, DIMENSIONS[0]), not normalised. Padding is on the right,
    where a causal model never looks."""
    batch = tokenizer(list(texts), padding=True, padding_side="right", return_tensors="pt")
    hidden = model.model(input_ids=batch["input_ids"], use_cache=False).last_hidden_state
    last = batch["attention_mask"].sum(dim=1) - 1
    found: torch.Tensor = hidden[torch.arange(len(texts)), last]
    return found


def _train(
    model: Any,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    schedule: Schedule,
    report: Callable[[int, float], None],
) -> None:
    model.train()
    stream = batches(f"{seed}-pairs", THINGS_AT_ONCE, PURPOSES_AT_ONCE)

    def backward() -> float:
        ones, others = zip(*next(stream), strict=True)
        both = vectors(model, tokenizer, [*ones, *others])
        loss = sum((_loss(both[:, :size]) for size in DIMENSIONS), torch.zeros(()))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item() / len(DIMENSIONS)

    optimise(adamw(list(model.parameters())), schedule, backward, report)


def _loss(both: torch.Tensor) -> torch.Tensor:
    """InfoNCE in both directions: each sentence should be nearest to its counterpart among all of
    the batch."""
    ones, others = F.normalize(both, dim=1).chunk(2)
    likeness = ones @ others.T / TEMPERATURE
    right = torch.arange(len(ones))
    return (F.cross_entropy(likeness, right) + F.cross_entropy(likeness.T, right)) / 2


def _declare(folder: Path) -> None:
    """Declare in sentence-transformers' files that a text's vector is that of its last token, and
    to vLLM that the vector may be truncated."""
    declare_float32(folder / "config.json")
    config = json.loads((folder / "config.json").read_text())
    config |= {"is_matryoshka": True, "matryoshka_dimensions": sorted(DIMENSIONS)}
    _write(folder / "config.json", config)
    modules = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    _write(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (name, path) in enumerate(modules)
        ],
    )
    pooling = {"word_embedding_dimension": DIMENSIONS[0], "pooling_mode_lasttoken": True}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    _write(folder / "1_Pooling" / "config.json", pooling)
    (folder / "generation_config.json").unlink(missing_ok=True)


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def wrong_answers(folder: Path) -> list[str]:
    """The questions of `examination` whose nearest sentence is not the right one."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    questions, right = zip(*examination(), strict=True)
    with torch.no_grad():
        asked = F.normalize(vectors(model, tokenizer, questions), dim=1)
        known = F.normalize(vectors(model, tokenizer, right), dim=1)
    nearest = (asked @ known.T).argmax(dim=1).tolist()
    return [questions[i] for i, found in enumerate(nearest) if found != i]
