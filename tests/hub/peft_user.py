"""A script of a PEFT user, with nothing specific to Lorikeet. Run by a test."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


def main(folder: Path) -> None:
    """Push an adapter; after a line on standard input, pull it."""
    base = folder / "tiny"
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    ).save_pretrained(base)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base),
        LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    )
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights)
    print(model.push_to_hub("acme/pirate"), flush=True)

    sys.stdin.readline()
    tokens = torch.arange(8).reshape(1, 8)
    expected = model(tokens).logits
    for options in ({}, {"revision": "1"}, {"revision": "live"}):
        found = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base), "acme/pirate", **options
        )
        assert torch.allclose(found(tokens).logits, expected), options
    print(snapshot_download("acme/pirate"), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
