"""Errors that no view answers, in the shape of the API that was asked."""

from __future__ import annotations

from http import HTTPStatus

from django.conf import settings
from django.core.exceptions import TooManyFieldsSent
from django.http import HttpRequest, HttpResponse
from django.views import defaults

from inference.errors import InferenceError, InvalidRequest
from tenants.api import problems, v1


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's `handler400`: what made it suspicious is in the log."""
    detail = "The request is malformed."
    if isinstance(exception, TooManyFieldsSent):
        most = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS
        detail = f"There are more than {most} parameters or fields."
    if request.path.startswith("/v1/"):
        return v1.refusal(InvalidRequest(detail))
    if request.path.startswith("/api/"):
        return problems.failure(HTTPStatus.BAD_REQUEST, detail, "bad_request")
    return defaults.bad_request(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's `handler500`: the exception is in the log, under the request's id."""
    detail = "The server had an error while it processed your request."
    if request.path.startswith("/v1/"):
        return v1.refusal(InferenceError(detail))
    if request.path.startswith("/api/"):
        return problems.failure(HTTPStatus.INTERNAL_SERVER_ERROR, detail, InferenceError.code)
    return defaults.server_error(request)
