"""Creates a small random Llama with a tokenizer and random PEFT adapters; nothing is downloaded.

PyTorch and libraries built on it are imported only where they are used, because every process of a
test run collects the tests of this folder, but only one runs them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.agent.engines.engine import LocalAdapter
from inference.content import CONFIG, FILES, WEIGHTS, digest_of
from inference.link.engine_info import AdapterRef

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast

MAX_MODEL_LEN = 512
LAYERS = 3
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

CHAT_TEMPLATE = (
    "<|bos|>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if tools %}<|system|>{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_CORPUS = [
    "The quick brown fox jumps over the lazy dog, and then it rests a while.",
    '{"name": "get_weather", "arguments": {"city": "Paris"}, "ok": true, "n": 0.125}',
    "Who are you, what can you do, and what is the capital of France or Peru?",
    "<tool_call></tool_call> zero one two three four five six seven eight nine ten",
]

_int_ids = itertools.count(1)


def make_base(folder: Path, max_position_embeddings: int = MAX_MODEL_LEN) -> Path:
    """Write a random Llama of about a million parameters with a byte-level BPE tokenizer."""
    from transformers import LlamaConfig

    return write_model(
        folder,
        lambda vocab_size: LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=max_position_embeddings,
            bos_token_id=0,
            eos_token_id=1,
            initializer_range=0.2,  # wide, so that greedy tokens have clear winners
            tie_word_embeddings=False,
        ),
    )


def write_model(folder: Path, configure: Callable[[int], PreTrainedConfig]) -> Path:
    """Write a model with random weights; `configure` gets the tokenizer's vocabulary size."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    tokenizer = make_tokenizer()
    model = AutoModelForCausalLM.from_config(configure(len(tokenizer)))
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>"]
    special += ["<think>", "</think>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<|bos|>", eos_token="<|eos|>", pad_token="<|eos|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@dataclass
class AdapterFactory:
    """Random adapters of the base model in `base`, written under `folder`."""

    base: Path
    folder: Path

    def make(
        self,
        tenant: str = "acme",
        *,
        seed: int = 0,
        rank: int = 8,
        strength: float = 0.1,
        name: str = "bot",
        **options: Any,
    ) -> LocalAdapter:
        """A working adapter; `strength` is the standard deviation of both its factors, `options`
        are further fields of PEFT's `LoraConfig`."""
        import torch
        from peft import LoraConfig, PeftModel, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, **{"target_modules": TARGETS} | options)
        peft: PeftModel = get_peft_model(model, lora)
        for weight_name, weight in peft.named_parameters():
            if "lora_" in weight_name:
                torch.nn.init.normal_(weight, std=strength)
        draft = self.folder / f"draft-{next(_int_ids)}"
        peft.save_pretrained(draft)
        return self.adopt(draft, tenant, name)

    def adopt(self, draft: Path, tenant: str = "acme", name: str = "bot") -> LocalAdapter:
        """A copy of the adapter in the folder `draft` as a version, named by its digest."""
        digest = digest_of(*(_sha256(draft / file) for file in FILES))
        path = self.folder / f"{next(_int_ids)}-{digest}"
        path.mkdir()
        for file in FILES:
            (path / file).write_bytes((draft / file).read_bytes())
        ref = AdapterRef(f"{tenant}/{name}@{digest}", digest)
        return LocalAdapter(ref, next(_int_ids), path)

    def changed(
        self, adapter: LocalAdapter, change: Callable[[str, torch.Tensor], torch.Tensor]
    ) -> LocalAdapter:
        """A version of `adapter` with each tensor replaced by `change(name, tensor)`."""
        from safetensors.torch import load_file, save_file

        tensors = load_file(adapter.path / WEIGHTS)
        draft = self.folder / f"changed-{next(_int_ids)}"
        draft.mkdir()
        (draft / CONFIG).write_bytes((adapter.path / CONFIG).read_bytes())
        new = {name: change(name, tensor).contiguous() for name, tensor in tensors.items()}
        save_file(new, draft / WEIGHTS, metadata={"format": "pt"})
        return self.adopt(draft)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
