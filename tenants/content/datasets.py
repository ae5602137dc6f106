"""Stored chats as a file of a tenant, in the format in which OpenAI's fine-tuning takes them.

Such a file is a copy of its own: neither the end of the retention period nor the destruction of the
tenant's key deletes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, Any

import msgspec
from django.db import transaction

from inference.gateway.measuring.content import KeptContent
from inference.operations.chat import CHAT
from tenants.adapters import quota
from tenants.content.reading import answers_of, kept_of
from tenants.content.turns import SpokenTurn
from tenants.files import blobs, keeping
from tenants.models import AuditEntry, Purpose, StoredFile, Tenant
from tenants.models.audit import Actor

MAX_REQUESTS = 1_000
"""At most how many requests are written: they are read in a few seconds."""
MAX_BYTES = 64 << 20
READ_AT_ONCE = 20
"""Requests in memory at a time; each takes up to half a megabyte."""


class LeftOut(StrEnum):
    """Why a request is not in the file, as a clause of a sentence."""

    NOT_STORED = "have no stored content"
    CUT = "were too long to be stored whole"
    NO_CHAT = "are no chats with an answer"
    TOO_MUCH = f"would exceed {MAX_BYTES >> 20} MiB"


@dataclass(frozen=True, slots=True)
class Dataset:
    """What was written; `file` is None if no request could be."""

    file: StoredFile | None
    written: int
    left_out: Counter[LeftOut]


def save(tenant: Tenant, request_ids: Sequence[str], filename: str, actor: Actor) -> Dataset:
    """Write these requests to a new file; `actor` is for the audit log.

    Raises:
        StorageFull: the tenant has no room for the file.
    """
    file = StoredFile(tenant=tenant, purpose=Purpose.FINE_TUNE, filename=filename)
    left_out = Counter[LeftOut]()
    with blobs.made(file.pk) as target:
        written = _write(target, _lines(tenant, request_ids), left_out)
        file.size_bytes = target.tell()
    try:
        with transaction.atomic():
            if written:
                keeping.require_room(quota.locked(tenant.pk), file.size_bytes)
                file.save(force_insert=True)
                name = f"{written} request{'' if written == 1 else 's'} in {file.pk}"
                AuditEntry.objects.note(actor, tenant, "read", name, kind="content")
    except BaseException:
        blobs.remove(file.pk)
        raise
    if not written:
        blobs.remove(file.pk)
    return Dataset(file if written else None, written, left_out)


def _write(target: IO[bytes], lines: Iterator[bytes | LeftOut], left_out: Counter[LeftOut]) -> int:
    """Write the lines as far as there is room; returns how many. Counts those left out."""
    written = 0
    for line in lines:
        if not isinstance(line, LeftOut) and target.tell() + len(line) > MAX_BYTES:
            line = LeftOut.TOO_MUCH
        if isinstance(line, LeftOut):
            left_out[line] += 1
        else:
            target.write(line)
            written += 1
    return written


def _lines(tenant: Tenant, request_ids: Sequence[str]) -> Iterator[bytes | LeftOut]:
    for start in range(0, len(request_ids), READ_AT_ONCE):
        ids = request_ids[start : start + READ_AT_ONCE]
        kept = kept_of(tenant, ids)
        yield from (line_of(kept.get(id)) for id in ids)


def line_of(kept: KeptContent | None) -> bytes | LeftOut:
    """The line of a request, or why there is none."""
    if kept is None:
        return LeftOut.NOT_STORED
    if kept.cut:
        return LeftOut.CUT
    try:
        request = json.loads(kept.request)
        answer = next(answers_of(kept), None)
    except (ValueError, RecursionError):
        return LeftOut.NO_CHAT
    messages = request.get("messages") if isinstance(request, dict) else None
    is_chat = kept.operation == CHAT.name and isinstance(messages, list) and messages
    if not is_chat or answer is None or not (answer.text or answer.calls):
        return LeftOut.NO_CHAT
    assert isinstance(messages, list)
    example = {"messages": [*messages, _message(answer)]}
    if isinstance(tools := request.get("tools"), list) and tools:
        example["tools"] = tools
    return msgspec.json.encode(example) + b"\n"


def _message(answer: SpokenTurn) -> dict[str, Any]:
    """The answer as a message; its calls get new ids, which nothing after it refers to."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    calls = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(answer.calls, 1)
    ]
    return message | ({"tool_calls": calls} if calls else {})
