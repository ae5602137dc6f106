"""`POST /v1/feedback`: scores the answer to a request. The score is one of those that the Requests
page shows, that splits compare, and that `/api/v1/requests/{id}/scores` gives and removes."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest

from inference.errors import InvalidRequest, NotFound, RateLimitExceeded
from tenants.api.openai.shapes.feedback import FeedbackRequest
from tenants.api.openai.views import body_of, keyed_by_method
from tenants.errors import TooManyAnnotations
from tenants.listing import Where
from tenants.models import ApiKey, RequestScore
from tenants.models.annotations import ScoreValue
from tenants.models.usage.listed import may_be_unrecorded
from tenants.permissions import TABLE, Caller, Permission

WRITERS = TABLE[Permission.EDIT_ANNOTATIONS][1]


def _give(request: HttpRequest, key: ApiKey) -> dict[str, Any]:
    """Score a request of the key's tenant. Replaces the score of the same name that a key gave."""
    wanted = body_of(request, FeedbackRequest)
    caller = Caller(key.tenant, key=key)
    if not (events := Where.to_annotate(caller).named(wanted.request_id).events):
        raise _unknown(wanted.request_id)
    try:
        score = RequestScore.objects.put(
            key.tenant,
            events[0].id,
            events[0].started_at,
            None,
            name=wanted.name,
            value=ScoreValue.of(wanted.score),
            comment=wanted.comment,
        )
    except ValidationError as error:
        raise InvalidRequest(" ".join(error.messages)) from error
    except TooManyAnnotations as error:
        raise RateLimitExceeded(error.message) from error
    given = {"request_id": wanted.request_id, "name": score.name, "score": score.value}
    created_at = int(score.created_at.timestamp())
    return {"object": "feedback", **given, "comment": score.comment, "created_at": created_at}


def _unknown(id: str) -> NotFound:
    if may_be_unrecorded(id):
        return NotFound("This request is not recorded yet. Retry in some seconds.")
    return NotFound("There is no such request.")


feedback = keyed_by_method(WRITERS, POST=_give)
