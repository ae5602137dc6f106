"""Responses that run in the background: `background` of `POST /v1/responses`.

1. A gateway stores the response with its body, encrypted like all stored responses, and answers
   that it is queued.
2. A worker leases it (`tenants.batches`) and asks a gateway for it, as for the only line of a
   batch, but without the body: the gateway reads that, and workers never see it.
3. The gateway that ran it stores the answer, and tells the worker only that there is one.

It is ended once. Each gateway that begins with it records its turn; answers of lower turns that
come later are dropped, as the ledger drops their bills. Cancelling or deleting it ends it in the
database; its worker learns of that when it renews its lease, and has the gateway stop.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import structlog

from inference.errors import (
    InferenceError,
    InvalidRequest,
    Overloaded,
    PayloadTooLarge,
    ResponseNotFound,
    Unavailable,
)
from inference.gateway.lines.frames import OpenBatch
from inference.gateway.lines.seals import BACKGROUND, background_id, line_id, seal
from inference.gateway.stored.conversations import MAX_BYTES
from inference.gateway.stored.responses import Record, read_record
from inference.interfaces.directory import Directory, Grant
from inference.interfaces.stored import EndedResponse, Queued, StoredResponses
from inference.operations.responses.call import ResponseCall
from inference.operations.responses.framing import FAILED, failure
from inference.operations.responses.items import listed
from inference.operations.responses.responses import RESPONSES
from inference.shared_capacity import SharedCapacity

log = structlog.get_logger(__name__)

AGAIN_S = 1.0
"""Pause between two tries to store an answer, while the database is unavailable."""
NOT_RUN = ("background", "input", "previous_response_id", "store", "stream")
"""Fields of a body that are not kept for its run; the input is kept separately, as items."""

_json = msgspec.json.Encoder().encode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Answer(msgspec.Struct):
    status: str


_answer = msgspec.json.Decoder(_Answer)


def is_background(batch: str) -> bool:
    """Whether this id is that of a background response, not of a batch."""
    return batch.startswith(BACKGROUND)


class Background:
    """The background responses that callers queue at a gateway process and workers ask it for."""

    def __init__(
        self,
        store: StoredResponses,
        directory: Directory,
        space: SharedCapacity[int],
        *,
        secret: str,
    ) -> None:
        """Bodies of running responses take up `space`; queued responses are sealed with `secret`,
        so that workers can ask for nothing else."""
        self._store, self._directory = store, directory
        self._space, self._secret = space, secret

    async def queue(self, grant: Grant, call: ResponseCall, request_id: str, once: str = "") -> str:
        """Queue the call to be run; returns the id of its response. If one was queued under the
        same `once`, that one's id.

        Raises:
            InvalidRequest: the tenant stores nothing.
            PayloadTooLarge: the record is over MAX_BYTES.
            UnknownModel, RateLimitExceeded, Unavailable: as the directory and the store.
        """
        await self._directory.resolve(grant, call.model)
        created_at = datetime.now(UTC)
        opening = OpenBatch(
            background_id(request_id), grant.key_id, created_at.timestamp(), RESPONSES.name, ""
        )
        id = line_id(opening.batch, 1)
        queued = Queued(
            tenant_id=grant.tenant_id,
            key_id=grant.key_id,
            id=id,
            batch=opening.batch,
            created_at=created_at,
            seal=seal(self._secret, opening),
            record=_record_of(call, id, created_at),
            once=once,
        )
        kept = await self._store.queue(queued) if grant.keeps_content else None
        if kept is None:
            raise InvalidRequest(
                "`background` requires stored responses, but storage is off for tenant "
                f"`{grant.tenant}` or for this API key. A tenant admin can turn it on in "
                "the console, under Stored prompts, or with `PATCH /api/v1/content`.",
                param="background",
            )
        return RESPONSES.answer_id(kept)

    async def begin(self, grant: Grant, id: str, turn: int) -> BackgroundWork:
        """The response whose request has this id, to be run in this turn. Call its `close` in the
        end.

        Raises:
            ResponseNotFound: there is nothing to run.
            Overloaded: this gateway has no room for its body now.
        """
        found = await self._store.begin(grant.tenant_id, id, turn)
        record = None if found is None else read_record(found)
        if found is None or record is None or record.fields is None:
            raise ResponseNotFound
        if not self._space.take(grant.tenant_id, len(found)):
            raise Overloaded(
                "The gateway has no memory left for the response's body.", retry_after_s=AGAIN_S
            )
        return BackgroundWork(
            self._store, self._space, grant.tenant_id, id, turn, record, len(found)
        )


def _record_of(call: ResponseCall, id: str, created_at: datetime) -> bytes:
    """The record of a call that is stored until it is run."""
    fields = _fields.decode(call.body)
    items = msgspec.Raw(b"[" + listed(bytes(fields["input"])) + b"]")
    for name in NOT_RUN:
        fields.pop(name, None)
    call.echoed = {**call.echoed, "background": True, "store": True}
    response = RESPONSES.framing(call, id, int(created_at.timestamp())).queued()
    record = _json(Record(items, msgspec.Raw(response), fields))
    if len(record) > MAX_BYTES:
        raise PayloadTooLarge(
            f"Including the conversation so far, the request has {len(record)} bytes. A "
            f"background response can have at most {MAX_BYTES}, including its answer."
        )
    return record


class BackgroundWork:
    """A response that this gateway runs."""

    def __init__(
        self,
        store: StoredResponses,
        space: SharedCapacity[int],
        tenant_id: int,
        id: str,
        turn: int,
        record: Record,
        size: int,
    ) -> None:
        """It takes up `size` bytes of the space."""
        self._store, self._space, self._size = store, space, size
        self._tenant_id, self._id, self._turn = tenant_id, id, turn
        self._record = record

    def call(self) -> ResponseCall:
        """The call to run; its answer has the fields of the response as it was queued.

        Raises:
            RequestError: the body was accepted when it was queued, but no longer is.
        """
        fields = self._record.fields or {}
        call = RESPONSES.parse(_json(fields | {"input": self._record.items}))
        call.echoed = _fields.decode(self._record.response)
        return call

    async def answered(self, response: bytes) -> None:
        """Store this answer; retries until the database takes it."""
        record = _json(Record(self._record.items, msgspec.Raw(response)))
        if len(record) > MAX_BYTES:
            message = (
                f"The response has {len(record)} bytes including its input; at most "
                f"{MAX_BYTES} can be stored."
            )
            return await self.failed(PayloadTooLarge(message))
        await self._end(EndedResponse(_answer.decode(response).status, record))

    async def failed(self, error: InferenceError) -> None:
        """Store that it ended with this error; retries until the database takes it."""
        response = _fields.decode(self._record.response) | failure(error)
        record = Record(self._record.items, msgspec.Raw(_json(response)))
        await self._end(EndedResponse(FAILED, _json(record)))

    async def _end(self, ended: EndedResponse) -> None:
        while True:
            try:
                kept = await self._store.end(self._tenant_id, self._id, self._turn, ended)
            except Unavailable:
                await asyncio.sleep(AGAIN_S)
            else:
                break
        if not kept:  # cancelled, deleted, or run in a higher turn
            log.info("background_answer_dropped", request_id=self._id, turn=self._turn)

    def close(self) -> None:
        """Give its space back; may be called twice."""
        size, self._size = self._size, 0
        self._space.give_back(self._tenant_id, size)
