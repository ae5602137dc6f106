"""Stored responses: `store` of `POST /v1/responses`, and later requests for them.

Responses are stored only if the tenant keeps content, and for as long as it does. Otherwise `store`
is answered `false`, and also if there is no room for a response or no database when it ends. A
record has the whole response and all input that the model was given for it, that of the responses
it continues included; so each record is complete by itself, whichever of the others is deleted.

They are found by tenant and id: another tenant's response looks as if it did not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import msgspec
import structlog

from inference.errors import (
    BY_CODE,
    InferenceError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    ResponseNotFound,
    Unavailable,
    UnknownResponse,
)
from inference.gateway.exchanges.callers import Callers
from inference.gateway.exchanges.inference_exchange import InferenceExchange
from inference.gateway.last_responses import ResponseItems
from inference.gateway.loop_iteration import count, pause
from inference.gateway.stored.conversations import (
    MAX_BYTES,
    Addition,
    Conversations,
    too_large,
)
from inference.interfaces.directory import Grant
from inference.interfaces.stored import ResponseStatus, StoredResponses
from inference.operations.bodies.shape import BodyShape
from inference.operations.openai import NULL
from inference.operations.operation import Call
from inference.operations.responses.call import ResponseCall
from inference.operations.responses.framing import CANCELLED, LIVE, failure
from inference.operations.responses.items import (
    LISTING,
    REFERENCE,
    joined,
    listed,
    listing,
    made_id,
    shown,
    unknown_reference,
)
from inference.operations.responses.responses import RESPONSES
from inference.shared_capacity import SharedCapacity

log = structlog.get_logger(__name__)

PATH = f"{RESPONSES.path}/"
ID = re.compile(rf"{RESPONSES.id_prefix}_([0-9a-f]{{32}})")
ITEM_ID = re.compile(r"(?:msg|rs|fc)_([0-9a-f]{32})_[0-9]+")
NOT_STORED = nullcontext()
MAX_REFERRED = 32
"""Stored responses from which one input may refer to items."""

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored; `items` is the list of input items. A response that has not run yet also has
    the other `fields` of its body."""

    items: msgspec.Raw
    response: msgspec.Raw
    fields: dict[str, msgspec.Raw] | None = None


class _Response(msgspec.Struct):
    output: msgspec.Raw


class _Background(msgspec.Struct):
    background: bool = False


class _Event(msgspec.Struct):
    response: msgspec.Raw


class _Item(msgspec.Struct):
    id: str = ""
    type: str | None = None


_raws = msgspec.json.Decoder(list[msgspec.Raw])
_item = msgspec.json.Decoder(_Item)
read_record = msgspec.json.Decoder(Record).decode
_response = msgspec.json.Decoder(_Response)
_background = msgspec.json.Decoder(_Background)
_event = msgspec.json.Decoder(_Event)


class ResponseStorage(NamedTuple):
    """`AnswerStorage` of responses: stores a response once it is whole, and adds it to the
    conversation that it continues."""

    store: StoredResponses
    tenant_id: int
    items: bytes
    addition: Addition | None = None

    async def whole(self, id: str, body: bytes) -> bytes:
        """See `AnswerStorage`."""
        if self.addition is not None:
            output = listed(bytes(_response.decode(body).output))
            if not await self.addition.add(id, output):
                body = _changed(body, conversation=NULL)
        return body if await self._keep(id, body) else _changed(body, store=msgspec.Raw(b"false"))

    async def ending(self, id: str, events: bytes) -> bytes:
        """See `AnswerStorage`."""
        name, _, rest = events.partition(b"\ndata: ")
        data, _, after = rest.partition(b"\n\n")
        response = bytes(_event.decode(data).response)
        replaced = data.replace(response, await self.whole(id, response))
        return name + b"\ndata: " + replaced + b"\n\n" + after

    async def _keep(self, id: str, response: bytes) -> bool:
        if len(response) + len(self.items) > MAX_BYTES:
            return False
        items = msgspec.Raw(b"[" + self.items + b"]")
        try:
            record = _json(Record(items, msgspec.Raw(response)))
            return await self.store.keep(self.tenant_id, id, record)
        except Unavailable as error:
            log.warning("response_not_stored", request_id=id, error=str(error))
            return False


class StoredResponseApi:
    """The stored responses of a gateway process's callers."""

    def __init__(
        self,
        callers: Callers,
        store: StoredResponses,
        conversations: Conversations,
        space: SharedCapacity[int],
        *,
        max_body_bytes: int,
    ) -> None:
        """Inputs of running responses take up `space` until they are stored."""
        self._callers, self._store, self._space = callers, store, space
        self._conversations = conversations
        self._max_body_bytes = max_body_bytes

    # --- while they are generated ----------------------------------------------------------------

    async def followed(self, grant: Grant, call: Call) -> Call:
        """The call with everything that it refers to: if it continues a response or conversation,
        all earlier items in front of its input, and items in place of references to them.

        Raises:
            UnknownResponse: the tenant has no such response.
            PayloadTooLarge, InvalidRequest: an item does not exist, or the whole is more than a
                body may have.
            Unavailable: the database is unavailable.
        """
        if not isinstance(call, ResponseCall) or not call.continues:
            return call
        before = b""
        if call.conversation and not grant.keeps_content:
            message = "`conversation` requires storage, which is off for this API key."
            raise InvalidRequest(message, param="conversation")
        if call.conversation:
            before = await self._conversations.items(grant.tenant_id, call.conversation)
        elif call.previous_response_id:
            if (found := await self.items_of(grant.tenant_id, call.previous_response_id)) is None:
                raise UnknownResponse(param="previous_response_id")
            before = found.items
        fields = _fields.decode(call.body)
        for name in ("conversation", "previous_response_id"):
            fields.pop(name, None)
        given = bytes(fields.get("input", NULL))  # a count may lack it
        if call.references:
            given = await self._resolved(grant.tenant_id, given)
        items = joined(before, listed(given))
        body = _json(fields | {"input": msgspec.Raw(b"[" + items + b"]")})
        self._check_size(len(body))
        await count(body, BodyShape(RESPONSES.max_numbers))
        await pause(len(body))
        whole = call.operation.parse(body)
        assert isinstance(whole, ResponseCall), "made by `parse`"
        if call.previous_response_id:
            whole.echoed = {**whole.echoed, "previous_response_id": call.previous_response_id}
        if call.conversation:
            whole.conversation, whole.own_items = call.conversation, listed(given)
            whole.echoed = {**whole.echoed, "conversation": {"id": call.conversation}}
        await pause(len(body))
        return whole

    async def _resolved(self, tenant_id: int, given: bytes) -> bytes:
        """The input, a list, with items in place of references to them."""
        parts = _raws.decode(given)
        known: dict[str, dict[str, msgspec.Raw]] = {}
        for i, part in enumerate(parts):
            item = _item.decode(part)
            if item.type == REFERENCE:
                named = ITEM_ID.fullmatch(item.id)
                if named and named[1] not in known:
                    if len(known) == MAX_REFERRED:
                        raise _too_many_referred(f"input[{i}]")
                    known[named[1]] = await self._output(tenant_id, named[1])
                if not named or item.id not in known.get(named[1], {}):
                    raise unknown_reference(f"input[{i}]")
                parts[i] = known[named[1]][item.id]
        self._check_size(sum(len(bytes(part)) for part in parts))
        return _json(parts)

    async def _output(self, tenant_id: int, request_id: str) -> dict[str, msgspec.Raw]:
        """The items of this response's output, by id; empty if there is no such response."""
        found = await self._store.read(tenant_id, request_id)
        if found is None:
            return {}
        output = _raws.decode(_response.decode(read_record(found).response).output)
        return {_item.decode(part).id: part for part in output}

    def _check_size(self, size: int) -> None:
        if size > self._max_body_bytes:
            raise PayloadTooLarge(
                "Including the conversation so far, the request exceeds this server's "
                f"limit of {self._max_body_bytes} bytes."
            )

    async def items_of(self, tenant_id: int, id: str) -> ResponseItems | None:
        """All items up to the end of this response; None if the tenant has no such response.

        Raises:
            InvalidRequest: the response has not ended, or has no output.
        """
        if (record := await self._find(tenant_id, id)) is None:
            return None
        if record.fields is not None:
            message = (
                "The response has no output yet, or failed: wait until its status is `completed`."
            )
            raise InvalidRequest(message, param="previous_response_id")
        output = _response.decode(record.response).output
        return ResponseItems(id, joined(listed(bytes(record.items)), listed(bytes(output))))

    def storing(
        self, exchange: InferenceExchange, grant: Grant, call: Call
    ) -> AbstractContextManager[None]:
        """Use around the generation of an answer: has it stored if it is a response and the call
        and the tenant want that, and holds the space for its input meanwhile.

        Raises:
            PayloadTooLarge, Overloaded: it can't be added to its conversation.
        """
        if not isinstance(call, ResponseCall):
            return NOT_STORED
        return self._storing(exchange, grant, call)

    @contextmanager
    def _storing(
        self, exchange: InferenceExchange, grant: Grant, call: ResponseCall
    ) -> Iterator[None]:
        items = b""
        if call.store and grant.keeps_content:
            items = listed(bytes(_fields.decode(call.body)["input"]))
        size = len(items)
        if not size or size > MAX_BYTES or not self._space.take(grant.tenant_id, size):
            if call.conversation and call.store:
                raise _unkept(size)
            yield
            return
        call.echoed = {**call.echoed, "store": True}
        addition = None
        if call.conversation:
            addition = self._conversations.addition(grant.tenant_id, call)
        exchange.storage = ResponseStorage(self._store, grant.tenant_id, items, addition)
        try:
            yield
        finally:
            exchange.storage = None
            self._space.give_back(grant.tenant_id, size)

    # --- afterwards ------------------------------------------------------------------------------

    async def reply(self, exchange: InferenceExchange) -> None:
        """Answer a request for a stored response: `/v1/responses/<id>`, `.../input_items` or
        `.../cancel`.

        Raises:
            ResponseNotFound: the caller's tenant has no such response.
        """
        id, _, asked = exchange.path.removeprefix(PATH).partition("/")
        if (answer := self._ANSWERS.get(asked)) is None:
            raise NotFound(f"Invalid URL: {exchange.method} {exchange.path}.")
        methods, answered = answer
        exchange.require_method(*methods)
        grant = await self._callers.identify(exchange)
        await answered(self, exchange, grant, id)

    async def _reply_one(self, exchange: InferenceExchange, grant: Grant, id: str) -> None:
        if exchange.method == "DELETE":
            return await self._delete(exchange, grant, id)
        query = exchange.query("include[]", "include_obfuscation", "starting_after", "stream")
        if query.get("stream") == "true":
            message = "`stream` is not supported when a stored response is retrieved."
            raise InvalidRequest(message, param="stream")
        await self._reply(exchange, await self.current(grant, id))

    async def current(self, grant: Grant, id: str) -> bytes:
        """The response in its current state.

        Raises:
            ResponseNotFound: the caller's tenant has no such response.
        """
        record = await self._get(grant, id)
        if record.fields is None:
            return bytes(record.response)
        found = await self._store.status(grant.tenant_id, _name(id))
        if found is None:
            raise ResponseNotFound
        if found.status in (*LIVE, CANCELLED) or found.code:
            return _with_status(record, found)
        return bytes((await self._get(grant, id)).response)  # it has ended meanwhile

    async def _delete(self, exchange: InferenceExchange, grant: Grant, id: str) -> None:
        named = ID.fullmatch(id)
        if named is None or not await self._store.delete(grant.tenant_id, named[1]):
            raise ResponseNotFound
        await self._reply(exchange, _json({"id": id, "object": "response", "deleted": True}))

    async def _reply_items(self, exchange: InferenceExchange, grant: Grant, id: str) -> None:
        record = await self._get(grant, id)
        items = shown(listed(bytes(record.items)), _names(id))
        query = exchange.query(*LISTING)
        await self._reply(exchange, _json(listing(items, query, "input")))

    async def _cancel(self, exchange: InferenceExchange, grant: Grant, id: str) -> None:
        record = await self._get(grant, id)
        if not _background.decode(record.response).background:
            raise InvalidRequest("Only a background response can be cancelled.")
        if record.fields is not None:
            await self._store.cancel(grant.tenant_id, _name(id))
        await self._reply(exchange, await self.current(grant, id))

    _ANSWERS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
        "": (("GET", "HEAD", "DELETE"), _reply_one),
        "input_items": (("GET", "HEAD"), _reply_items),
        "cancel": (("POST",), _cancel),
    }

    async def _reply(self, exchange: InferenceExchange, body: bytes) -> None:
        await self._callers.note_limits(exchange)
        await exchange.reply(200, body)

    async def _get(self, grant: Grant, id: str) -> Record:
        if (record := await self._find(grant.tenant_id, id)) is None:
            raise ResponseNotFound
        return record

    async def _find(self, tenant_id: int, id: str) -> Record | None:
        if (named := ID.fullmatch(id)) is None:
            return None
        found = await self._store.read(tenant_id, named[1])
        return None if found is None else read_record(found)


def _name(id: str) -> str:
    """The request id in a valid response id."""
    return id.removeprefix(f"{RESPONSES.id_prefix}_")


def _with_status(record: Record, current: ResponseStatus) -> bytes:
    """A response without an answer, in its current state."""
    changed: dict[str, Any] = {"status": current.status}
    if current.code:
        changed |= failure(BY_CODE.get(current.code, InferenceError)())
    return _json(_fields.decode(record.response) | changed)


def _too_many_referred(at: str) -> InvalidRequest:
    return InvalidRequest(
        f"The input refers to items of more than {MAX_REFERRED} responses: send further items "
        "themselves.",
        param=at,
    )


def _unkept(size: int) -> InferenceError:
    """Why a response can't be added to its conversation."""
    if size > MAX_BYTES:
        return too_large(size)
    return Overloaded("There is no memory left to store the conversation.", retry_after_s=1.0)


def _changed(response: bytes, **fields: msgspec.Raw) -> bytes:
    return _json(_fields.decode(response) | fields)


def _names(id: str) -> Callable[[str, int], str]:
    """Makes ids for items of this response's input that came without one, from type and index."""
    request_id = _name(id)
    return lambda kind, index: made_id(kind, request_id, index)
