"""`GET /v1/models` and `GET /v1/models/<name>`."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.gateway.callers import Callers
from inference.gateway.exchange import Exchange
from inference.grants import OUR_MODELS, Directory, Grant, ModelCard

PATH = "/v1/models"


class Models:
    """What a key may use, by name."""

    def __init__(self, callers: Callers, directory: Directory) -> None:
        self._callers, self._directory = callers, directory

    async def reply_list(self, exchange: Exchange) -> None:
        """Every model of the caller."""
        grant = await self._greet(exchange)
        cards = [_card(card) for card in await self._directory.models(grant)]
        await exchange.reply(200, msgspec.json.encode({"object": "list", "data": cards}))

    async def reply_one(self, exchange: Exchange) -> None:
        """The model that the path names, as a request may: one version of an adapter, too.

        Raises:
            UnknownModel: the caller has no such model.
        """
        grant = await self._greet(exchange)
        target = await self._directory.resolve(grant, exchange.path.removeprefix(f"{PATH}/"))
        owner = OUR_MODELS if target.adapter is None else grant.tenant
        card = ModelCard(target.model, target.created, owner, target.base_model)
        await exchange.reply(200, msgspec.json.encode(_card(card)))

    async def _greet(self, exchange: Exchange) -> Grant:
        exchange.require_method("GET", "HEAD")
        grant = await self._callers.identify(exchange)
        await self._callers.note_limits(exchange)
        return grant


def _card(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "root": card.root,
    }
