"""What an OpenAI-compatible server says of its models, and what is served of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import httpx
import msgspec

from inference.agent.engines.engine import EngineNotStarted
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.upstream.adapters import PREFIX
from inference.agent.engines.upstream.connection import CONNECT_S
from inference.agent.engines.upstream.dialects import Dialect
from inference.link.engine_info import ModelInfo
from inference.operations.operation import Operation

SHOWN = 5
"""Models that an error names."""
NO_ADAPTERS = "It serves no adapters."
SHARES = "may share its prefix cache between tenants."
FINISHES = "finishes answers whose clients have left."
NO_CACHE = "It computes every prompt from the beginning, and answers of one adapter at a time."


async def listed_models(client: httpx.AsyncClient, url: str, model: str) -> list[dict[str, Any]]:
    """The models that the server lists; only `model`, if that is given and it has no list.

    Raises:
        EngineNotStarted: it does not.
    """
    try:
        answer = await client.get("models", timeout=CONNECT_S)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise EngineNotStarted(f"{url}/models does not answer: {reason}") from error
    if answer.status_code in (401, 403):
        raise EngineNotStarted(
            f"{url}/models answers {answer.status_code}: LORIKEET_UPSTREAM_KEY is missing or wrong"
        )
    if answer.status_code == httpx.codes.NOT_FOUND and model:
        return [{"id": model}]
    with suppress(ValueError, TypeError, KeyError):
        if answer.is_success and isinstance(listed := answer.json()["data"], list):
            return [one for one in listed if isinstance(one, dict) and "id" in one]
    raise EngineNotStarted(
        f"{url}/models answers {answer.status_code}, not with a list of models: the address must "
        "include /v1 (of a service without a list, set --upstream-model)"
    )


def card_of(listed: list[dict[str, Any]], name: str, model: str, url: str) -> dict[str, Any]:
    """The one that the server calls `model`, by default `name`, or its only one.

    Raises:
        EngineNotStarted: there is none.
    """
    found = next((one for one in listed if one["id"] == (model or name)), None)
    bases = [one for one in listed if not _is_adapter(one)]
    if found is None and not model and len(bases) == 1:
        return bases[0]
    if found is None:
        there = ", ".join(str(one["id"]) for one in listed[:SHOWN]) or "none"
        raise EngineNotStarted(
            f"{url} has no model {model or name!r}: set --upstream-model to one of its own: {there}"
        )
    return found


def _is_adapter(card: dict[str, Any]) -> bool:
    """ms-swift lists adapters without their `parent`."""
    return bool(card.get("parent")) or str(card["id"]).startswith(PREFIX)


def info_of(
    profile: EngineProfile,
    card: dict[str, Any],
    url: str,
    dialect: Dialect,
    operations: Iterable[Operation],
) -> ModelInfo:
    """What is served, without adapters.

    Raises:
        EngineNotStarted: the length of its context is not known.
    """
    length = profile.max_model_len or _length(card)
    if length is None:
        raise EngineNotStarted(
            f"{url} does not say how long the context of {card['id']} is: set --max-model-len"
        )
    lacks = [f"{profile.name} is served by {dialect.name}: its answers don't move."]
    if not dialect.salted:
        lacks.append(f"{dialect.name} {SHARES}")
    if dialect.finishes:
        lacks.append(f"{dialect.name} {FINISHES}")
    lacks.append(NO_ADAPTERS)
    return ModelInfo(
        name=profile.name,
        max_model_len=length,
        max_loras=0,
        max_lora_rank=0,
        kv_tokens=length * profile.running,
        modules={},
        engine="upstream",
        revision=hashlib.sha256(f"{url}\n{card['id']}\n{dialect.name}".encode()).hexdigest(),
        engine_version=dialect.name,
        operations=[one.name for one in operations],
        parsers={"tool": dialect.name} if "tools" in dialect.fields else {},
        structured_outputs=dialect.schemas,
        resumes=False,
        degraded=lacks,
    )


async def with_adapters(info: ModelInfo, profile: EngineProfile, only: list[str]) -> ModelInfo:
    """The same with what adapters of the model may look like, by its configuration. `only` are the
    digests of those that the server was started with, if it loads no others.

    Raises:
        EngineNotStarted: that can't be read.
    """
    try:
        modules = await asyncio.to_thread(_modules, profile.model)
    except ImportError as error:
        raise EngineNotStarted(f"--upstream-adapters needs PyTorch: {error}") from error
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise EngineNotStarted(
            f"--model {profile.model} must be the folder or Hugging Face name of the server's "
            f"model, for the shapes of its adapters: {reason}"
        ) from error
    lacks = [one for one in info.degraded if one != NO_ADAPTERS]
    if only:
        fixed = f"It serves only the {len(only)} adapters that its server was started with."
        lacks = [*(one for one in lacks if not one.endswith(SHARES)), NO_CACHE, fixed]
    return msgspec.structs.replace(
        info,
        max_loras=profile.max_loras,
        max_lora_rank=profile.max_lora_rank,
        modules=modules,
        degraded=lacks,
        only_adapters=only,
    )


def _modules(model: str) -> dict[str, tuple[int, int]]:
    """Blocks for seconds: it imports PyTorch, and may fetch the configuration."""
    from transformers import AutoConfig

    from inference.agent.engines.shapes import adaptable_shapes, on_meta

    return adaptable_shapes(*on_meta(AutoConfig.from_pretrained(model)))


def _length(card: dict[str, Any]) -> int | None:
    """The model's context in tokens: vLLM's and SGLang's field, or llama.cpp's, whose older
    releases say only with how much the model was trained."""
    meta = card["meta"] if isinstance(card.get("meta"), dict) else {}
    length = card.get("max_model_len") or meta.get("n_ctx") or meta.get("n_ctx_train")
    return length if isinstance(length, int) and 0 < length < 1 << 31 else None
