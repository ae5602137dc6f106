"""vLLM's test modules that can run here, and their source with the names of our models.

Left out are modules that need a model or an option which Lorikeet's demo lacks (images, audio,
reasoning, prompt embeddings, several GPUs), that load the model themselves, or that test no server.
"""

from __future__ import annotations

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

import demo

GENERATING = (
    "anthropic/test_messages.py",
    "generate/generative_scoring/test_generative_scoring_e2e.py",
    "openai/chat_completion/test_batched_chat_completions.py",
    "openai/chat_completion/test_chat.py",
    "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_chat_echo.py",
    "openai/chat_completion/test_chat_logit_bias_validation.py",
    "openai/chat_completion/test_completion_with_function_calling.py",
    "openai/chat_completion/test_logprob_token_ids.py",
    "openai/completion/test_completion.py",
    "openai/completion/test_prompt_validation.py",
    "openai/models/test_models.py",
    "openai/responses/test_basic.py",
    "openai/responses/test_function_call.py",
    "openai/responses/test_simple.py",
    "openai/responses/test_stateful.py",
    "openai/test_chunked_prompt.py",
    "openai/test_return_token_ids.py",
    "openai/test_return_tokens_as_ids.py",
    "serve/instrumentator/test_basic.py",
    "serve/lora/test_lora_adapters.py",
    "serve/tokenize/test_tokenization.py",
)
EMBEDDING = (
    "pooling/basic/test_truncation.py",
    "pooling/embed/test_cohere_online.py",
    "pooling/embed/test_cohere_openai_parity.py",
    "pooling/embed/test_online.py",
    "pooling/scoring/test_bi_encoder_online.py",
)

LEFT_OUT = (
    "serve/lora/test_lora_adapters.py::test_loading_invalid_adapters_does_not_break_others",
    "serve/instrumentator/test_basic.py::test_request_cancellation",
)
"""The first goes on for ever if no adapter can be loaded by its path; the second needs a context of
10,000 tokens."""

SUPPORT = (
    "ci_envs.py", "models/__init__.py", "models/registry.py", "models/utils.py",
    "models/language/__init__.py", "models/language/pooling/__init__.py",
    "models/language/pooling/embed_utils.py",
)  # fmt: skip
"""What these modules import of vLLM's tests, except `utils.py`, which `inside.py` stands in for."""

MAKERS = (
    "BAAI", "HuggingFaceH4", "HuggingFaceTB", "Qwen", "facebook", "ibm-granite", "intfloat",
    "meta-llama", "openai-community", "sentence-transformers", "Snowflake",
)  # fmt: skip
_MODEL = re.compile(rf'"(?:{"|".join(MAKERS)})/[^"/]+"|"claude-3-7-sonnet-latest"')
_CONTEXT = re.compile(r"\b8192\b")
_ADAPTER = re.compile(r'"(?:zephyr-lora|qwen3-lora|minpeter/[^"]+)"')


@dataclass(frozen=True, slots=True)
class Served:
    """A base model as both sides serve it, and what is tested on it."""

    name: str
    base: Path
    adapters: dict[str, Path]
    modules: tuple[str, ...]
    context: int
    """Its longest prompt and answer together, in tokens."""


def generating() -> Served:
    """The tiny demo model, with the adapter of the tenant whose key is used."""
    adapters = demo.TINY.adapters[demo.TENANTS[0].slug]
    return Served(demo.MODEL_NAME, demo.BASE, adapters, GENERATING, context=4096)


def embedding() -> Served:
    return Served(demo.EMBEDDING_NAME, demo.EMBEDDING, {}, EMBEDDING, context=512)


def unpack(source: Path, folder: Path, served: Served) -> None:
    """Write vLLM's tests of its endpoints to the folder, with the names of the served model.

    Tests read tokenizers by the same names, so there is a link of each name to the model.
    """
    with tarfile.open(source) as archive:
        for member in archive:
            _, _, path = member.name.partition("/tests/")
            if member.isfile() and _is_wanted(path) and (read := archive.extractfile(member)):
                file = folder / "tests" / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(renamed(read.read().decode(), served))
    for name in (served.name, *served.adapters):
        (folder / name).symlink_to(served.base.resolve())


def _is_wanted(path: str) -> bool:
    return path.endswith(".py") and (
        path == "__init__.py" or path in SUPPORT or path.startswith("entrypoints/")
    )


def renamed(text: str, served: Served) -> str:
    """The module's text with the served model, adapter and context instead of its own."""
    for pattern, ours in (
        (_MODEL, f'"{served.name}"'),
        (_ADAPTER, f'"{next(iter(served.adapters), served.name)}"'),
        (_CONTEXT, str(served.context)),
    ):
        text = pattern.sub(ours, text)
    return text
