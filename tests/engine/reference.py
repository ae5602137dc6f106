"""Greedy answers of transformers and PEFT in float32, which engines are compared with."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

TOKENS = 24
Expected = tuple[str, list[float]]
"""A text, and the log-probabilities of its tokens."""


@cache
def loaded(base: Path, adapter: Path | None) -> Any:
    """The model as transformers and PEFT load it."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return (model if adapter is None else PeftModel.from_pretrained(model, adapter)).eval()


@cache
def reference(base: Path, adapter: Path | None, prompt: tuple[int, ...]) -> Expected:
    """The greedy text of transformers and PEFT, and its tokens' log-probabilities."""
    import torch
    from transformers import AutoTokenizer

    model = loaded(base, adapter)
    ids, logprobs = list(prompt), []
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            best = torch.log_softmax(logits, dim=-1).max(dim=-1)
            ids.append(int(best.indices))
            logprobs.append(float(best.values))
    tokenizer = AutoTokenizer.from_pretrained(base)
    return tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True), logprobs
