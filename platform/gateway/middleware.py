"""Each request that Django answers gets an id, on its answer and on every line that it logs."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponse

from inference.hub import new_id

log = structlog.get_logger(__name__)


class RequestId:
    """Sets `x-request-id` and logs one line a request, as the token path does."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        id, began = new_id(), time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=id):
            response = self._get_response(request)
            log.info(
                "request",
                method=request.method,
                path=request.path,
                status=response.status_code,
                ms=round((time.monotonic() - began) * 1000, 1),
            )
        response["x-request-id"] = f"req_{id}"
        return response
