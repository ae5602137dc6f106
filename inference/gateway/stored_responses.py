"""Responses that are stored: `store` of `POST /v1/responses`, and what is asked of them later.

Only where the tenant keeps content, and as long: elsewhere `store` is answered `false`, and so is
it where there is no room for a response, or no database when it ends. What is kept is the whole
response and all that the model was given for it, of the responses that it goes on from too; so each
stands for itself, whichever of the others is deleted.

They are found by their tenant and their id: what another tenant stored looks as if it were not
there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import structlog

from inference.errors import (
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    ResponseNotFound,
    Unavailable,
    UnknownResponse,
)
from inference.gateway.callers import Callers
from inference.gateway.conversations import Said
from inference.gateway.exchange import Exchange
from inference.gateway.space import Space
from inference.grants import Grant, StoredResponses
from inference.operations.bodies.shape import Shape
from inference.operations.call import Call
from inference.operations.responses.items import (
    MAX_PAGE,
    PAGE,
    REFERENCE,
    joined,
    listed,
    shown,
    unknown_reference,
)
from inference.operations.responses.responses import RESPONSES

log = structlog.get_logger(__name__)

PATH = f"{RESPONSES.path}/"
MAX_BYTES = 2 << 20
"""Of a response and what the model was given for it."""
ID = re.compile(rf"{RESPONSES.id_prefix}_([0-9a-f]{{32}})")
ITEM_ID = re.compile(r"(?:msg|rs|fc)_([0-9a-f]{32})_[0-9]+")
MAX_REFERRED = 32
"""Responses that items of one input are of."""
ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
"""Of items that came without an id."""

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Record(msgspec.Struct, frozen=True):
    """What is stored; the items as a list."""

    items: msgspec.Raw
    response: msgspec.Raw


class _Response(msgspec.Struct):
    output: msgspec.Raw


class _Event(msgspec.Struct):
    response: msgspec.Raw


class _Item(msgspec.Struct):
    id: str = ""
    type: str | None = None


_raws = msgspec.json.Decoder(list[msgspec.Raw])
_item = msgspec.json.Decoder(_Item)
_record = msgspec.json.Decoder(_Record)
_response = msgspec.json.Decoder(_Response)
_event = msgspec.json.Decoder(_Event)


class Keeping(NamedTuple):
    """A response that is to be stored once it is whole."""

    store: StoredResponses
    tenant_id: int
    items: bytes

    async def whole(self, id: str, body: bytes) -> bytes:
        """Store the answer to the request of this id; the answer as it is to be sent."""
        return body if await self._keep(id, body) else _unstored(body)

    async def ending(self, id: str, events: bytes) -> bytes:
        """The same of a stream: its last event has the response."""
        name, _, rest = events.partition(b"\ndata: ")
        data, _, after = rest.partition(b"\n\n")
        response = bytes(_event.decode(data).response)
        if await self._keep(id, response):
            return events
        told = data.replace(response, _unstored(response))
        return name + b"\ndata: " + told + b"\n\n" + after

    async def _keep(self, id: str, response: bytes) -> bool:
        if len(response) + len(self.items) > MAX_BYTES:
            return False
        items = msgspec.Raw(b"[" + self.items + b"]")
        try:
            record = _json(_Record(items, msgspec.Raw(response)))
            return await self.store.keep(self.tenant_id, id, record)
        except Unavailable as error:
            log.warning("response_not_stored", request_id=id, error=str(error))
            return False


class Responses:
    """Those of a gateway process's callers."""

    def __init__(
        self, callers: Callers, store: StoredResponses, space: Space, *, max_body_bytes: int
    ) -> None:
        """Inputs of responses that run take of the `space` until these are stored."""
        self._callers, self._store, self._space = callers, store, space
        self._max_body_bytes = max_body_bytes

    # --- while they are generated ----------------------------------------------------------------

    async def followed(self, grant: Grant, call: Call) -> Call:
        """The call, with all that was said before in front of its input if it goes on from a
        response, and with the items that its input refers to.

        Raises:
            UnknownResponse: the tenant has no such response.
            PayloadTooLarge, InvalidRequest: there is no such item, or together it is more than a
                body may have.
            Unavailable: the database is away.
        """
        if not (call.follows or call.refers):
            return call
        before = b""
        if call.follows:
            if (said := await self.said(grant.tenant_id, call.follows)) is None:
                raise UnknownResponse(param="previous_response_id")
            before = said.items
        fields = _fields.decode(call.body)
        fields.pop("previous_response_id", None)
        given = bytes(fields["input"])
        if call.refers:
            given = await self._resolved(grant.tenant_id, given)
        items = joined(before, listed(given))
        body = _json(fields | {"input": msgspec.Raw(b"[" + items + b"]")})
        self._check_size(len(body))
        Shape(call.operation.max_numbers).feed(body)
        whole = call.operation.parse(body)
        if call.follows:
            whole.told = {**whole.told, "previous_response_id": call.follows}
        return whole

    async def _resolved(self, tenant_id: int, given: bytes) -> bytes:
        """The input, a list, with items in the place of references to them."""
        parts = _raws.decode(given)
        known: dict[str, dict[str, msgspec.Raw]] = {}
        for i, part in enumerate(parts):
            item = _item.decode(part)
            if item.type == REFERENCE:
                named = ITEM_ID.fullmatch(item.id)
                if named and named[1] not in known and len(known) < MAX_REFERRED:
                    known[named[1]] = await self._output(tenant_id, named[1])
                if not named or item.id not in known.get(named[1], {}):
                    raise unknown_reference(f"input[{i}]")
                parts[i] = known[named[1]][item.id]
        self._check_size(sum(len(bytes(part)) for part in parts))
        return _json(parts)

    async def _output(self, tenant_id: int, request_id: str) -> dict[str, msgspec.Raw]:
        """The items of this response's output, by their ids; none if there is no such response."""
        found = await self._store.read(tenant_id, request_id)
        if found is None:
            return {}
        output = _raws.decode(_response.decode(_record.decode(found).response).output)
        return {_item.decode(part).id: part for part in output}

    def _check_size(self, size: int) -> None:
        if size > self._max_body_bytes:
            raise PayloadTooLarge(
                "With all that was said before, the request is over this server's limit of "
                f"{self._max_body_bytes} bytes."
            )

    async def said(self, tenant_id: int, id: str) -> Said | None:
        """All that was said up to the end of this response; None: the tenant has none such."""
        if (record := await self._find(tenant_id, id)) is None:
            return None
        output = _response.decode(record.response).output
        return Said(id, joined(listed(bytes(record.items)), listed(bytes(output))))

    @contextmanager
    def keeping(self, exchange: Exchange, grant: Grant, call: Call) -> Iterator[None]:
        """While its response is generated. It is stored if the call and its tenant want that."""
        items = b""
        if call.stored and grant.keeps_content:
            items = listed(bytes(_fields.decode(call.body)["input"]))
        size = len(items)
        if not size or size > MAX_BYTES or not self._space.take(grant.tenant_id, size):
            yield
            return
        call.told = {**call.told, "store": True}
        exchange.keeping = Keeping(self._store, grant.tenant_id, items)
        try:
            yield
        finally:
            exchange.keeping = None
            self._space.give_back(grant.tenant_id, size)

    # --- afterwards ------------------------------------------------------------------------------

    async def reply(self, exchange: Exchange) -> None:
        """Answer what is asked of a response: `/v1/responses/<id>`, `.../input_items` or
        `.../cancel`.

        Raises:
            ResponseNotFound: the caller's tenant has no such response.
        """
        id, _, asked = exchange.path.removeprefix(PATH).partition("/")
        if (answer := self._ANSWERS.get(asked)) is None:
            raise NotFound(f"Unknown address: {exchange.method} {exchange.path}.")
        methods, answered = answer
        exchange.require_method(*methods)
        grant = await self._callers.identify(exchange)
        await answered(self, exchange, grant, id)

    async def _reply_one(self, exchange: Exchange, grant: Grant, id: str) -> None:
        if exchange.method == "DELETE":
            return await self._delete(exchange, grant, id)
        if exchange.query.get("stream") == "true":
            said = "`stream` is not supported: a stored response is whole."
            raise InvalidRequest(said, param="stream")
        record = await self._get(grant, id)
        return await self._reply(exchange, bytes(record.response))

    async def _delete(self, exchange: Exchange, grant: Grant, id: str) -> None:
        named = ID.fullmatch(id)
        if named is None or not await self._store.delete(grant.tenant_id, named[1]):
            raise ResponseNotFound
        await self._reply(exchange, _json({"id": id, "object": "response", "deleted": True}))

    async def _reply_items(self, exchange: Exchange, grant: Grant, id: str) -> None:
        limit, order = _limit(exchange.query), exchange.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("`order` must be `asc` or `desc`.", param="order")
        record = await self._get(grant, id)
        items = shown(listed(bytes(record.items)), _names(id))
        if order == "desc":
            items.reverse()
        if after := exchange.query.get("after"):
            ids = [item["id"] for item in items]
            if after not in ids:
                raise InvalidRequest("`after` names no item of this input.", param="after")
            items = items[ids.index(after) + 1 :]
        page = items[:limit]
        listing = {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > limit,
        }
        await self._reply(exchange, _json(listing))

    async def _cancel(self, exchange: Exchange, grant: Grant, id: str) -> None:
        await self._get(grant, id)
        raise InvalidRequest("Only a response that runs in the background can be cancelled.")

    _ANSWERS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
        "": (("GET", "HEAD", "DELETE"), _reply_one),
        "input_items": (("GET", "HEAD"), _reply_items),
        "cancel": (("POST",), _cancel),
    }

    async def _reply(self, exchange: Exchange, body: bytes) -> None:
        await self._callers.note_limits(exchange)
        await exchange.reply(200, body)

    async def _get(self, grant: Grant, id: str) -> _Record:
        if (record := await self._find(grant.tenant_id, id)) is None:
            raise ResponseNotFound
        return record

    async def _find(self, tenant_id: int, id: str) -> _Record | None:
        if (named := ID.fullmatch(id)) is None:
            return None
        found = await self._store.read(tenant_id, named[1])
        return None if found is None else _record.decode(found)


def _unstored(response: bytes) -> bytes:
    return _json(_fields.decode(response) | {"store": msgspec.Raw(b"false")})


def _limit(query: dict[str, str]) -> int:
    given = query.get("limit", str(PAGE))
    if not (given.isascii() and given.isdigit() and len(given) < 4 and 1 <= int(given) <= MAX_PAGE):
        raise InvalidRequest(f"`limit` must be from 1 to {MAX_PAGE}.", param="limit")
    return int(given)


def _names(id: str) -> Callable[[str, int], str]:
    """What items of this response's input are called that came without an id."""
    request_id = id.removeprefix(f"{RESPONSES.id_prefix}_")
    return lambda kind, i: f"{ID_PREFIXES.get(kind, 'fco')}_{request_id}_in_{i}"
