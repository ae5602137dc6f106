"""Conversations: `/v1/conversations`, and `conversation` of `POST /v1/responses`.

A conversation is a list of items with metadata. It exists only if the tenant keeps content, and for
as long as it does. A response that continues it gets all of its items before its own input; at the
end its input and output are added in one step, so of two concurrent responses both are added,
whichever ends first. Each change replaces the version that was read, and is retried if that was no
longer the latest.

They are found by tenant and id: another tenant's conversation looks as if it did not exist.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import msgspec
import structlog

from inference.errors import (
    ConversationNotFound,
    InferenceError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PayloadTooLarge,
)
from inference.gateway.exchanges.bodies import Bodies
from inference.gateway.exchanges.callers import Callers
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.interfaces.directory import Grant
from inference.interfaces.stored import StoredConversations
from inference.operations.bodies.reading import decode
from inference.operations.bodies.shape import BodyShape
from inference.operations.responses.call import ResponseCall
from inference.operations.responses.fields import Metadata
from inference.operations.responses.items import (
    LISTING,
    ResponseItem,
    check_input,
    joined,
    listed_page,
    listing,
    made_id,
    shown,
    split,
)
from inference.operations.responses.responses import RESPONSES

log = structlog.get_logger(__name__)

PATH = "/v1/conversations"
ID = re.compile(r"conv_([0-9a-f]{32})")
MAX_BYTES = 2 << 20
"""Most bytes of a stored conversation, and of a response together with the input that the model was
given for it."""
MAX_ITEMS = 1000
AT_ONCE = 20
"""Most items added in one request, as with OpenAI."""
TRIES = 8
"""Attempts at a change while others change the same conversation."""

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_Items = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=AT_ONCE)]


class _Wanted(msgspec.Struct):
    """The body that creates a conversation."""

    items: _Items | None = None
    metadata: Metadata | None = None


class _Renamed(msgspec.Struct):
    metadata: Metadata | None


class _Added(msgspec.Struct):
    items: _Items


class _Item(msgspec.Struct):
    id: str


class ConversationBody(msgspec.Struct, frozen=True):
    """What is stored; each item has an id."""

    created_at: int
    metadata: dict[str, str]
    items: list[msgspec.Raw]

    def with_items(self, added: list[msgspec.Raw]) -> ConversationBody:
        """The conversation with these items appended, except those that it already has."""
        known = {_item.decode(one).id for one in self.items}
        new = [one for one in added if _item.decode(one).id not in known]
        return msgspec.structs.replace(self, items=self.items + new)

    def shown(self) -> list[dict[str, Any]]:
        """Its items as listed for clients."""
        return shown(joined(*map(bytes, self.items)), lambda kind, number: "")


_item = msgspec.json.Decoder(_Item)
_wanted = msgspec.json.Decoder(_Wanted)
_renamed = msgspec.json.Decoder(_Renamed)
_added = msgspec.json.Decoder(_Added)
_items = msgspec.json.Decoder(list[ResponseItem])
_conversation = msgspec.json.Decoder(ConversationBody)
Change = Callable[[ConversationBody], ConversationBody]


class Addition(NamedTuple):
    """What a response adds to its conversation once it is whole."""

    conversations: Conversations
    tenant_id: int
    id: str
    own_items: bytes

    async def add(self, request_id: str, output: bytes) -> bool:
        """Add the input of the request of this id, and its output, both lists of items without
        brackets. It is idempotent, because another gateway that continues the answer adds it again.
        False if there is no room for it, the conversation is gone, or the database is unavailable.
        """
        added = _named(split(self.own_items), request_id) + split(output)
        try:
            await self.conversations.change(
                self.tenant_id, self.id, lambda one: one.with_items(added)
            )
        except InferenceError as error:
            log.warning("conversation_not_continued", code=error.code)
            return False
        return True


class Conversations:
    """The conversations of a gateway process's callers."""

    def __init__(
        self,
        callers: Callers,
        store: StoredConversations,
        bodies: Bodies,
    ) -> None:
        self._callers, self._store, self._bodies = callers, store, bodies

    # --- of responses ----------------------------------------------------------------------------

    async def items(self, tenant_id: int, id: str) -> bytes:
        """The conversation's items, as a JSON list without its brackets.

        Raises:
            ConversationNotFound: the tenant has no such conversation.
        """
        found, _ = await self._find(tenant_id, id)
        return joined(*map(bytes, found.items))

    def addition(self, tenant_id: int, call: ResponseCall) -> Addition:
        """What this call will add to its conversation."""
        return Addition(self, tenant_id, call.conversation, call.own_items)

    async def change(self, tenant_id: int, id: str, change: Change) -> ConversationBody:
        """Change the conversation; returns it as changed. `change` may be called several times.

        Raises:
            ConversationNotFound: the tenant has no such conversation.
            InvalidRequest, PayloadTooLarge: it would have too many items or bytes.
            Overloaded: too many other requests change it at the same time.
        """
        for _ in range(TRIES):
            found, version = await self._find(tenant_id, id)
            changed = change(found)
            if await self._store.replace(tenant_id, _name(id), version, _record_of(changed)):
                return changed
        raise Overloaded(
            "Too many requests are changing this conversation at the same time.", retry_after_s=1.0
        )

    async def _find(self, tenant_id: int, id: str) -> tuple[ConversationBody, bytes]:
        found = None
        if ID.fullmatch(id):
            found = await self._store.read(tenant_id, _name(id))
        if found is None:
            raise ConversationNotFound
        record, version = found
        return _conversation.decode(record), version

    # --- of clients ------------------------------------------------------------------------------

    async def reply(self, exchange: InferenceExchange) -> None:
        """Answer a request under `/v1/conversations`.

        Raises:
            ConversationNotFound: the caller's tenant has no such conversation.
        """
        parts = exchange.path.removeprefix(PATH).split("/")[1:]
        if len(parts) > 3 or parts[1:2] not in ([], ["items"]) or "" in parts:
            raise NotFound(f"Invalid URL: {exchange.method} {exchange.path}.")
        answers = self._ANSWERS[len(parts)]
        exchange.require_method(*answers)
        grant = await self._callers.identify(exchange)
        if exchange.method in ("POST", "DELETE"):
            await self._callers.count(exchange, grant)
        answer = await answers[exchange.method](self, exchange, grant, *parts[:1], *parts[2:])
        await self._callers.note_limits(exchange)
        await exchange.reply(200, _json(answer))

    async def _create(self, exchange: InferenceExchange, grant: Grant) -> dict[str, Any]:
        wanted: _Wanted = await self._read(exchange, _wanted)
        items = _checked(wanted.items or [], exchange.id)
        made = ConversationBody(int(time.time()), wanted.metadata or {}, items)
        record = _record_of(made)
        tenant_id, keeps = grant.tenant_id, grant.keeps_content
        if not (keeps and await self._store.keep(tenant_id, exchange.id, record)):
            raise InvalidRequest(
                f"Conversations require storage, which is off for tenant `{grant.tenant}` "
                "or for this API key. A tenant admin can turn it on in the console, under "
                "Stored prompts, or with `PATCH /api/v1/content`."
            )
        return _shown(f"conv_{exchange.id}", made)

    async def _retrieve(self, exchange: InferenceExchange, grant: Grant, id: str) -> dict[str, Any]:
        found, _ = await self._find(grant.tenant_id, id)
        return _shown(id, found)

    async def _update(self, exchange: InferenceExchange, grant: Grant, id: str) -> dict[str, Any]:
        metadata = (await self._read(exchange, _renamed)).metadata or {}
        return _shown(
            id,
            await self.change(
                grant.tenant_id, id, lambda one: msgspec.structs.replace(one, metadata=metadata)
            ),
        )

    async def _delete(self, exchange: InferenceExchange, grant: Grant, id: str) -> dict[str, Any]:
        if not (ID.fullmatch(id) and await self._store.delete(grant.tenant_id, _name(id))):
            raise ConversationNotFound
        return {"id": id, "object": "conversation.deleted", "deleted": True}

    async def _add(self, exchange: InferenceExchange, grant: Grant, id: str) -> dict[str, Any]:
        wanted: _Added = await self._read(exchange, _added)
        added = _checked(wanted.items, exchange.id)
        changed = await self.change(grant.tenant_id, id, lambda one: one.with_items(added))
        return listed_page(changed.shown()[-len(added) :] if added else [])

    async def _list(self, exchange: InferenceExchange, grant: Grant, id: str) -> dict[str, Any]:
        found, _ = await self._find(grant.tenant_id, id)
        return listing(found.shown(), exchange.query(*LISTING), "conversation")

    async def _item(
        self, exchange: InferenceExchange, grant: Grant, id: str, item: str
    ) -> dict[str, Any]:
        found, _ = await self._find(grant.tenant_id, id)
        return next((one for one in found.shown() if one["id"] == item), None) or _no_item()

    async def _remove(
        self, exchange: InferenceExchange, grant: Grant, id: str, item: str
    ) -> dict[str, Any]:
        def without(one: ConversationBody) -> ConversationBody:
            ids = [shown["id"] for shown in one.shown()]
            if item not in ids:
                _no_item()
            at = ids.index(item)
            return msgspec.structs.replace(one, items=one.items[:at] + one.items[at + 1 :])

        return _shown(id, await self.change(grant.tenant_id, id, without))

    _ANSWERS: tuple[dict[str, Callable[..., Any]], ...] = (
        {"POST": _create},
        {"GET": _retrieve, "HEAD": _retrieve, "POST": _update, "DELETE": _delete},
        {"GET": _list, "HEAD": _list, "POST": _add},
        {"GET": _item, "HEAD": _item, "DELETE": _remove},
    )
    """By the number of path parts after `/v1/conversations`, and by method."""

    async def _read(self, exchange: InferenceExchange, decoder: msgspec.json.Decoder[Any]) -> Any:
        shape = BodyShape(RESPONSES.max_numbers)
        body = await self._bodies.read(exchange, shape)
        found = decode(decoder, body or b"{}")
        await self._callers.identify(exchange)  # the key may have been revoked meanwhile
        return found


def _name(id: str) -> str:
    return id.removeprefix("conv_")


def _record_of(one: ConversationBody) -> bytes:
    """The record that is stored of it.

    Raises:
        InvalidRequest, PayloadTooLarge: it has too many items or bytes.
    """
    if len(one.items) > MAX_ITEMS:
        raise InvalidRequest(
            f"The conversation would have {len(one.items)} items; at most {MAX_ITEMS} can "
            "be stored. Start a new one.",
            param="items",
        )
    record = _json(one)
    if len(record) > MAX_BYTES:
        raise too_large(len(record))
    return record


def too_large(size: int) -> PayloadTooLarge:
    """The error for a conversation that would have this many bytes."""
    return PayloadTooLarge(
        f"The conversation would have {size} bytes; at most {MAX_BYTES} can be stored. "
        "Start a new one."
    )


def _checked(items: list[msgspec.Raw], request_id: str) -> list[msgspec.Raw]:
    """The items that came in the request of this id, as they are stored.

    Raises:
        InvalidRequest: they are invalid.
    """
    if items:
        raws = b"[" + joined(*map(bytes, items)) + b"]"
        try:
            check_input(decode(_items, raws))
        except InvalidRequest as error:
            message = error.message.replace("`input[", "`items[")
            raise InvalidRequest(message, param="items") from None
    return _named(items, request_id)


def _named(items: list[msgspec.Raw], request_id: str) -> list[msgspec.Raw]:
    """The items with ids, made from the id of the request in which they came."""
    return [_with_id(item, request_id, index) for index, item in enumerate(items)]


def _with_id(item: msgspec.Raw, request_id: str, index: int) -> msgspec.Raw:
    fields = _fields.decode(item)
    kind = msgspec.json.decode(fields.get("type", b'"message"')) or "message"
    id = msgspec.Raw(_json(made_id(kind, request_id, index)))
    return msgspec.Raw(_json(fields | {"id": id}))


def _no_item() -> Any:
    raise NotFound("This conversation has no item with this id.")


def _shown(id: str, one: ConversationBody) -> dict[str, Any]:
    return {
        "id": id,
        "object": "conversation",
        "created_at": one.created_at,
        "metadata": one.metadata,
    }
