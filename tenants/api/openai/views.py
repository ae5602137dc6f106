"""Views under `/v1/` that Django answers: only a tenant's key authenticates, and errors are in the
format of OpenAI's API, or of Anthropic's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar

import msgspec
import structlog
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from inference.errors import (
    InferenceError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from inference.key_headers import api_key
from inference.operations.error_shapes import OPENAI, ErrorShape
from tenants.api.authentication import raw_headers
from tenants.models import ApiKey
from tenants.storage import is_away

log = structlog.get_logger(__name__)

S = TypeVar("S")

View = Callable[..., HttpResponseBase]
KeyedView = Callable[..., Any]
"""Called with the request, the caller's key and the URL's parameters; returns an object to encode
as JSON, or a response."""

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""Times outside of these bounds are refused as mistakes."""

READING = ("GET", "HEAD")

_json = msgspec.json.Encoder().encode


def keyed(scopes: Collection[str]) -> Callable[[KeyedView], View]:
    """Decorator that makes a function a view for GET, for keys with one of the scopes."""
    return lambda answer: keyed_by_method(scopes, GET=answer)


def keyed_by_method(
    scopes: Collection[str], shape: ErrorShape = OPENAI, **answers: KeyedView
) -> View:
    """Makes a view from one function per method, for keys with one of the scopes; that of GET also
    answers HEAD. `shape` is that of its errors."""
    if "GET" in answers:
        answers["HEAD"] = answers["GET"]

    def view(request: HttpRequest, **named: Any) -> HttpResponseBase:
        answer = answers[request.method or ""](request, _authenticate(request, scopes), **named)
        return answer if isinstance(answer, HttpResponseBase) else reply(answer)

    return openai_view(wraps(next(iter(answers.values())))(view), [*answers], shape)


def openai_view(view: View, methods: Sequence[str] = READING, shape: ErrorShape = OPENAI) -> View:
    """Restricts a view to these methods, and turns its errors into answers in this shape."""

    @csrf_exempt
    @wraps(view)
    def guarded(request: HttpRequest, **named: Any) -> HttpResponseBase:
        try:
            if request.method not in methods:
                raise MethodNotAllowed(
                    f"This URL does not support {request.method}.", allowed=methods
                )
            return view(request, **named)
        except InferenceError as error:
            return refusal(error, shape)
        except OperationalError:
            return refusal(Unavailable("The database is unavailable.", retry_after_s=1), shape)
        except Exception as error:
            if not is_away(error):
                raise
            log.error("storage_unavailable", error=str(error))
            unavailable = Unavailable("The storage of files is unavailable.", retry_after_s=1)
            return refusal(unavailable, shape)

    return guarded


def body_of(request: HttpRequest, shape: type[S]) -> S:
    """The JSON body, decoded as `shape`.

    Raises:
        InvalidRequest: it is not valid JSON of that type.
    """
    try:
        return msgspec.json.decode(request.body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid: {error}.") from None


def reply(body: Any) -> HttpResponse:
    return HttpResponse(_json(body), content_type="application/json")


def refusal(error: InferenceError, shape: ErrorShape = OPENAI) -> HttpResponse:
    """The error in this shape."""
    headers: dict[str, str] = {}
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed) and error.allowed:
        headers["Allow"] = ", ".join(error.allowed)
    if error.retry_header is not None:
        headers["Retry-After"] = error.retry_header
    return HttpResponse(
        shape.body(error),
        content_type="application/json",
        status=error.http_status,
        headers=headers,
    )


@csrf_exempt
def not_found(request: HttpRequest) -> HttpResponse:
    """The answer for an unknown URL, for any method."""
    return refusal(NotFound())


def _authenticate(request: HttpRequest, scopes: Collection[str]) -> ApiKey:
    """The caller's key. It is read from the database: since a file's intake checked it, the key
    may have been revoked.

    Raises:
        InvalidApiKey: there is none, or several, or it is unknown or no longer usable.
        PermissionDenied: it has none of the scopes.
    """
    key = ApiKey.objects.authenticate(api_key(raw_headers(request)), timezone.now())
    if set(scopes).isdisjoint(key.scopes):
        raise PermissionDenied(f"This API key needs one of the scopes {', '.join(sorted(scopes))}.")
    return key


def ends_early(start: datetime, end: datetime) -> InvalidRequest:
    """The error for a period that is empty or reversed."""
    given, least = int(end.timestamp()), int(start.timestamp())
    return InvalidRequest(
        f"`end_time` is {given}: it must be after `start_time`, {least}.", param="end_time"
    )


class Query:
    """The parameters of a request; a list is written `name[]=a&name[]=b` or `name=a&name=b`."""

    def __init__(self, given: QueryDict, known: Collection[str]) -> None:
        """Check the parameters.

        Raises:
            InvalidRequest: one is not `known`, because the answer to a query with a misspelt filter
                would be mistaken for a filtered one; or its value has a null character, which
                PostgreSQL cannot compare with a column.
        """
        self._given: Mapping[str, list[str]] = dict(given.lists())
        for name, values in self._given.items():
            if any("\0" in value for value in values):
                raise InvalidRequest(f"`{name[:64]}` contains a null character.", param=name[:64])
        unknown = sorted(name for name in self._given if name.removesuffix("[]") not in known)
        if unknown:
            raise InvalidRequest(
                f"Unknown parameter: `{unknown[0][:64]}`. Allowed are {', '.join(sorted(known))}.",
                param=unknown[0][:64],
            )

    def words(self, name: str) -> list[str]:
        """All values of the parameter; empty if it is missing."""
        return [*self._given.get(name, []), *self._given.get(f"{name}[]", [])]

    def word(self, name: str) -> str | None:
        """The parameter's only value; None if it is missing.

        Raises:
            InvalidRequest: there are several, or it is empty.
        """
        found = self.words(name)
        if len(found) > 1 or found == [""]:
            raise InvalidRequest(f"`{name}` must have only one value.", param=name)
        return found[0] if found else None

    def integer(self, name: str, low: int, high: int) -> int | None:
        """The parameter as an integer; None if it is missing.

        Raises:
            InvalidRequest: it is not an integer from `low` to `high`.
        """
        text = self.word(name)
        if text is None:
            return None
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None
        if value is None or not low <= value <= high:
            raise InvalidRequest(
                f"`{name}` is {text[:64]!r}: it must be an integer from {low} to {high}.",
                param=name,
            )
        return value

    def time(self, name: str) -> datetime | None:
        """The parameter as a unix time in seconds; None if it is missing.

        Raises:
            InvalidRequest: it is not one, or not from EARLIEST to LATEST.
        """
        seconds = self.integer(name, int(EARLIEST.timestamp()), int(LATEST.timestamp()))
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

    def choices(self, name: str, allowed: Collection[str], why: str = "") -> list[str]:
        """All values, also if separated by commas, each once; `why` ends the error message.

        Raises:
            InvalidRequest: one is not allowed.
        """
        found = list(dict.fromkeys(part for word in self.words(name) for part in word.split(",")))
        for word in found:
            if word not in allowed:
                message = (
                    f"`{name}` is {word[:64]!r}: it must be one of {', '.join(allowed)}. {why}"
                )
                raise InvalidRequest(message.rstrip(), param=name)
        return found
