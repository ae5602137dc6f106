"""Errors that no view handles, in the format of the API that was called."""

from __future__ import annotations

from http import HTTPStatus

import structlog
from django.conf import settings
from django.core.exceptions import TooManyFieldsSent
from django.http import HttpRequest, HttpResponse, HttpResponseServerError
from django.template.loader import render_to_string
from django.views import defaults

from inference.errors import InferenceError, InvalidRequest
from tenants.api import problems
from tenants.api.openai import views as v1
from tenants.hub import replies as hub


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's `handler400`; the cause is in the log."""
    detail = "The request is malformed."
    if isinstance(exception, TooManyFieldsSent):
        most = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS
        detail = f"The request has more than {most} parameters or fields."
    if request.path.startswith("/v1/"):
        return v1.refusal(InvalidRequest(detail))
    if request.path.startswith("/api/"):
        return problems.failure(HTTPStatus.BAD_REQUEST, detail, "bad_request")
    if request.path.startswith("/hub/"):
        return hub.refusal(hub.HubError(HTTPStatus.BAD_REQUEST, detail))
    return defaults.bad_request(request, exception)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's `handler500`; the exception is in the log, under the request's id."""
    detail = "The server had an error while processing your request."
    if request.path.startswith("/v1/"):
        return v1.refusal(InferenceError(detail))
    if request.path.startswith("/api/"):
        return problems.failure(HTTPStatus.INTERNAL_SERVER_ERROR, detail, InferenceError.code)
    if request.path.startswith("/hub/"):
        return hub.refusal(hub.HubError(HTTPStatus.INTERNAL_SERVER_ERROR, detail))
    # The request is not used here: it may be the cause.
    id = structlog.contextvars.get_contextvars().get("request_id")
    page = render_to_string("500.html", {"request_id": f"req_{id}" if id else None})
    return HttpResponseServerError(page)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's CSRF_FAILURE_VIEW."""
    if request.path.startswith("/api/"):
        return problems.failure(HTTPStatus.FORBIDDEN, f"CSRF failed: {reason}", "csrf_failed")
    return HttpResponse(render_to_string("403_csrf.html"), status=HTTPStatus.FORBIDDEN)
