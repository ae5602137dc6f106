"""The stored content of a request, in a form that people can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from inference.gateway.measuring.content import KeptContent
from inference.operations.answered import AnsweredChoice, choices_of
from tenants.content import sealing
from tenants.content.sealing import Location, Unreadable
from tenants.content.turns import SpokenTurn, ToolUse, pretty
from tenants.models import Tenant
from tenants.models.content import ContentKind, StoredContent, StoredContentQuerySet


class ContentExchange(msgspec.Struct, frozen=True):
    """A request and its answers, one for each choice. `cut`: it was too long to be kept whole."""

    request: str
    answers: list[SpokenTurn]
    cut: bool


def is_kept(tenant: Tenant, request_id: str) -> bool:
    """Whether content of this request is stored."""
    return _of(tenant, request_id).exists()


def read(tenant: Tenant, request_id: str) -> ContentExchange | None:
    """The content of this request; None if none is stored, or it can't be read."""
    kept = kept_of(tenant, [request_id]).get(request_id)
    if kept is None:
        return None
    return ContentExchange(pretty(kept.request), list(answers_of(kept)), kept.cut)


def kept_of(tenant: Tenant, request_ids: Sequence[str]) -> dict[str, KeptContent]:
    """The content of these requests by their ids, without those of which none is stored or that
    can't be read. Each takes up to half a megabyte."""
    found = _of(tenant, *request_ids).select_related("content_key")
    opened = ((one.name, _opened(tenant, one)) for one in found)
    return {name: kept for name, kept in opened if kept is not None}


def _opened(tenant: Tenant, found: StoredContent) -> KeptContent | None:
    if found.content_key.wrapped is None:
        return None
    wrapped, location = (
        bytes(found.content_key.wrapped),
        Location(tenant.pk, found.kind, found.name),
    )
    try:
        key = sealing.tenant_key(sealing.master_keys(), tenant.pk, wrapped)
        return msgspec.json.decode(key.open(location, bytes(found.data)), type=KeptContent)
    except Unreadable:
        return None


def _of(tenant: Tenant, *request_ids: str) -> StoredContentQuerySet:
    return StoredContent.objects.live().filter(
        tenant=tenant, kind=ContentKind.REQUEST, name__in=request_ids
    )


def answers_of(kept: KeptContent) -> Iterator[SpokenTurn]:
    """The answer of each choice."""
    if kept.response:
        yield from _whole(kept.response)
    elif kept.chunks:
        yield from map(_answer, choices_of(kept.chunks))
    else:
        yield SpokenTurn("assistant", kept.text)


def _whole(response: str) -> list[SpokenTurn]:
    try:
        return [_answer(choice) for choice in choices_of([response])] or [_raw(response)]
    except (ValueError, TypeError, AttributeError):  # cut
        return [_raw(response)]


def _raw(response: str) -> SpokenTurn:
    return SpokenTurn("assistant", pretty(response))


def _answer(choice: AnsweredChoice) -> SpokenTurn:
    made = tuple(ToolUse.of(call) for call in choice.calls.values())
    return SpokenTurn("assistant", choice.text, made, choice.reasoning)
