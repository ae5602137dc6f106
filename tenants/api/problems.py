"""Errors of the management API, as problem details."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import structlog
from django.core.exceptions import ObjectDoesNotExist
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
)
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import serializers
from rest_framework.exceptions import (
    APIException,
    ErrorDetail,
    NotFound,
    ParseError,
    ValidationError,
)
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import exception_handler

from tenants.adapters.uploads.refusals import UploadRefused
from tenants.errors import Refused
from tenants.problem_details import MEDIA_TYPE, problem
from tenants.storage import is_away

log = structlog.get_logger(__name__)


OF_VALUES = {"22001", "22003", "22007", "22008", "22021", "22P02", "22P05"}
"""SQLSTATEs of values that a column cannot hold: too long, too large, not a date, not text."""
OF_OUTAGES = {"22023", "25006", "3D000"}
"""SQLSTATEs of a database that is down or starting: a connection's settings are refused, a standby
cannot write yet, the database does not exist."""


NONE_FOUND = re.compile(r"No (\w+) matches the given query\.")
"""Django's message when a row does not exist."""


class Conflict(APIException):
    """The present state does not allow the request."""

    status_code = HTTPStatus.CONFLICT


class BadUpload(APIException):
    """An upload is refused."""

    wait: int | None
    """When to try again, in seconds; sent as Retry-After."""

    def __init__(self, refusal: UploadRefused) -> None:
        self.status_code, self.wait = refusal.status_code, refusal.wait
        super().__init__(refusal.message, refusal.code.value)


class DatabaseAway(APIException):
    status_code = HTTPStatus.SERVICE_UNAVAILABLE
    default_detail = "The database is unavailable. Try again later."
    default_code = "service_unavailable"
    wait = 1


class StorageAway(APIException):
    status_code = HTTPStatus.SERVICE_UNAVAILABLE
    default_detail = "The storage of files is unavailable. Try again later."
    default_code = "service_unavailable"
    wait = 1


class FieldErrorSerializer(serializers.Serializer[Any]):
    field = serializers.CharField(
        help_text="Dotted path in the body, or name of a query parameter."
    )
    message = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """What went wrong (RFC 9457)."""

    absent = {"errors"}
    type = serializers.CharField(default="about:blank")
    title = serializers.CharField(help_text="The HTTP status as text.")
    status = serializers.IntegerField()
    detail = serializers.CharField(help_text="Human-readable explanation of the error.")
    code = serializers.CharField(help_text="Machine-readable error code.")
    errors = FieldErrorSerializer(many=True, required=False)  # type: ignore[assignment]


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's EXCEPTION_HANDLER; returns None for an error that is a bug of the server."""
    error = _as_problem(error)
    response = exception_handler(error, context)
    if response is None:
        return None
    response.data = _body(error, response)
    response.content_type = MEDIA_TYPE
    if (request := context.get("request")) is not None:  # whatever renderer the view uses
        request.accepted_renderer, request.accepted_media_type = JSONRenderer(), MEDIA_TYPE
    return response


def _as_problem(error: Exception) -> Exception:
    """The exception to report to the client; `error` itself if there is no other."""
    match error:
        case Refused():
            return Conflict(error.message, error.code)
        case UploadRefused():
            return BadUpload(error)
        case Http404() if named := NONE_FOUND.fullmatch(str(error)):
            return NotFound(f"There is no {_words(named[1])} with this name or id.")
        case ObjectDoesNotExist():  # deleted after the view had found it
            return NotFound("The resource was deleted in the meantime.")
        case IntegrityError():  # changed after the view had checked it
            log.warning("conflict", error=str(error))
            return Conflict("Another request changed this at the same time. Try again.", "conflict")
        case DataError() if _is_of_a_value(error):  # a value in the URL or the body
            return ParseError("A string contains a null character, or a number is too large.")
        case DatabaseError() | InterfaceError() if _is_away(error):
            log.error("database_unavailable", error=str(error))
            return DatabaseAway()
        case _ if is_away(error):
            log.error("storage_unavailable", error=str(error))
            return StorageAway()
        case RecursionError():  # from the parser, or from formatting a message with the value
            return ParseError("The body is nested too deeply.")
        case _:
            return error


def _words(name: str) -> str:
    """The name of a model class as separate words."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower().replace("api ", "API ")


def _sqlstate(error: DatabaseError | InterfaceError) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)


def _is_away(error: DatabaseError | InterfaceError) -> bool:
    """Whether the database cannot be reached. A connection that breaks during a query raises a
    plain DatabaseError without an SQLSTATE."""
    if isinstance(error, OperationalError | InterfaceError):
        return True
    return _sqlstate(error) in OF_OUTAGES or (
        type(error) is DatabaseError and _sqlstate(error) is None
    )


def _is_of_a_value(error: DataError) -> bool:
    """Whether a value that the client sent is at fault. Nearly no connection error is a DataError,
    but a setting that the database refuses while connecting is one."""
    if (state := _sqlstate(error)) is None:  # raised by psycopg itself
        return "NUL" in str(error)
    return state in OF_VALUES


def _body(error: Exception, response: Response) -> dict[str, Any]:
    if isinstance(error, ValidationError):
        errors = list(_fields(error.detail))
        return problem(response.status_code, _summary(errors), "invalid", errors)
    detail = response.data.get("detail", "") if isinstance(response.data, dict) else ""
    code = (detail.code or "error") if isinstance(detail, ErrorDetail) else "error"
    return problem(response.status_code, str(detail), code)


def _summary(errors: list[dict[str, str]]) -> str:
    first = errors[0] if errors else {"field": "", "message": "The request is not valid."}
    return f"{first['field']}: {first['message']}" if first["field"] else first["message"]


def _fields(detail: Any, path: tuple[str, ...] = ()) -> Iterator[dict[str, str]]:
    """Flattens DRF's tree of errors to a list."""
    if isinstance(detail, dict):
        for name, inner in detail.items():
            here = () if name == "non_field_errors" else (str(name),)
            yield from _fields(inner, path + here)
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            nested = isinstance(inner, dict | list)
            yield from _fields(inner, (*path, str(index)) if nested else path)
    else:
        yield {"field": ".".join(path), "message": str(detail)}


@csrf_exempt
def not_found(request: HttpRequest) -> JsonResponse:
    """The answer for an unknown URL under the API, for any method."""
    return failure(HTTPStatus.NOT_FOUND, "There is no resource at this URL.", "not_found")


def failure(status: int, detail: str, code: str) -> JsonResponse:
    """The response for an error outside of any view."""
    return JsonResponse(problem(status, detail, code), status=status, content_type=MEDIA_TYPE)
