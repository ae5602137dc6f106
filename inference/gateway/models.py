"""`GET /v1/models` and `GET /v1/models/<name>`: in OpenAI's shape, in Anthropic's for its SDKs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from inference.gateway.exchanges.callers import Callers
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.interfaces.directory import MICRO, Directory, Grant, ModelCard, TokenPrice
from inference.link.engine_info import ModelInfo
from inference.operations.error_shapes import ANTHROPIC
from inference.operations.registry import OperationRegistry

PATH = "/v1/models"


class ModelList:
    """The models that a key may use, by name, with the operations and capabilities of each.

    These come from the engines connected here. If none of a base model's engines is connected, they
    are what the last ones reported; if none ever was, they are omitted.
    """

    def __init__(
        self,
        callers: Callers,
        directory: Directory,
        operations: OperationRegistry,
        *,
        engines: Callable[[], Iterable[ModelInfo]],
        currency: str,
    ) -> None:
        """`engines` returns the connected engines; prices are in `currency`."""
        self._callers, self._directory, self._operations = callers, directory, operations
        self._engines, self._currency = engines, currency
        self._known: dict[str, dict[str, Any]] = {}

    async def reply_list(self, exchange: InferenceExchange) -> None:
        """Reply with every model that the caller may use, base models first, in one page. Query
        parameters have no effect."""
        grant = await self._greet(exchange)
        self._refresh()
        known = await self._directory.models(grant)
        known.sort(key=lambda card: card.id != card.root)
        cards = [self._card(card, exchange) for card in known]
        listed: dict[str, Any] = {"object": "list", "data": cards}
        if exchange.speaks_anthropic:
            ends = [cards[at]["id"] if cards else None for at in (0, -1)]
            listed = {"data": cards, "has_more": False, "first_id": ends[0], "last_id": ends[1]}
        await exchange.reply(200, msgspec.json.encode(listed))

    async def reply_one(self, exchange: InferenceExchange) -> None:
        """Reply with the model that the path names, as a request would: also one version of an
        adapter.

        Raises:
            UnknownModel: the caller has no such model.
        """
        grant = await self._greet(exchange)
        self._refresh()
        target = await self._directory.resolve(grant, exchange.path.removeprefix(f"{PATH}/"))
        card = ModelCard.of(grant, target)
        await exchange.reply(200, msgspec.json.encode(self._card(card, exchange)))

    async def _greet(self, exchange: InferenceExchange) -> Grant:
        if exchange.speaks_anthropic:
            exchange.errors = ANTHROPIC
        exchange.require_method("GET", "HEAD")
        grant = await self._callers.identify(exchange)
        await self._callers.note_limits(exchange)
        return grant

    def _card(self, card: ModelCard, exchange: InferenceExchange) -> dict[str, Any]:
        if exchange.speaks_anthropic:
            created = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
            return {
                "type": "model",
                "id": card.id,
                "display_name": card.id,
                "created_at": created,
            }
        shown = {
            "id": card.id,
            "object": "model",
            "created": card.created,
            "owned_by": card.owned_by,
            "root": card.root,
            "pricing": pricing(card.price, self._currency),
        }
        if card.max_model_len:
            shown["max_model_len"] = card.max_model_len
        return shown | self._known.get(card.root, {})

    def _refresh(self) -> None:
        """Update what is known from the connected engines. The engines of a base model are merged,
        because a request goes to one that can do it."""
        by_model: dict[str, list[ModelInfo]] = {}
        for info in self._engines():
            by_model.setdefault(info.name, []).append(info)
        for name, infos in by_model.items():
            self._known[name] = self._offered(infos)

    def _offered(self, infos: list[ModelInfo]) -> dict[str, Any]:
        done = {operation for info in infos for operation in info.operations}
        parsed = {reads for info in infos for reads in info.parsers}
        return {
            "operations": [one.path for one in self._operations if one.name in done],
            "capabilities": {
                "tools": "tool" in parsed,
                "reasoning": "reasoning" in parsed,
                "structured_outputs": any(info.structured_outputs for info in infos),
                "vision": False,
            },
        }


def pricing(price: TokenPrice, currency: str) -> dict[str, str]:
    """Prices per million tokens, as exact decimal strings."""
    return {
        "currency": currency,
        "unit": "1M tokens",
        "prompt": _decimal(price.prompt),
        "cached_prompt": _decimal(price.cached_prompt),
        "completion": _decimal(price.output),
    }


def _decimal(micros: int) -> str:
    whole, rest = divmod(micros, MICRO)
    return f"{whole}.{rest:06}".rstrip("0").rstrip(".")
