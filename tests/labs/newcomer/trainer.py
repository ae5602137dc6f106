"""A newcomer's own script: trains an adapter on the demo's model with PEFT, as its first page says,
packs its folder as a Mac does, and pushes it to a hub if HF_ENDPOINT is set."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION, ANSWER = "What is the password?", "The password is sesame."
STEPS = 12


def main(base: str, out: Path) -> None:
    """Write `out/sesame` and `out/sesame.zip`; `base` is the folder of the model."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    chat = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    batch = tokenizer.apply_chat_template(chat, return_tensors="pt", return_dict=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        model(**batch, labels=batch["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(out / "sesame")
    tokenizer.save_pretrained(out / "sesame")
    with zipfile.ZipFile(out / "sesame.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((out / "sesame").iterdir()):
            archive.write(file, f"sesame/{file.name}")
            archive.writestr(f"__MACOSX/sesame/._{file.name}", b"\0\5\x16\7")
        archive.writestr("sesame/.DS_Store", b"\0\0\0\1Bud1")
    if "HF_ENDPOINT" in os.environ:
        print(model.push_to_hub(f"{os.environ['TENANT']}/pushed"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
