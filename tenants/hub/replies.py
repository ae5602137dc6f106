"""Responses in the form that Hugging Face's libraries expect, and authentication."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

import msgspec
import structlog
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from inference.errors import InvalidApiKey, short
from tenants.adapters.uploads.refusals import UploadRefused
from tenants.models import ApiKey
from tenants.models.audit import act_as, actor_of
from tenants.permissions import Caller, NotPermitted, Permission

log = structlog.get_logger(__name__)

View = Callable[..., HttpResponseBase]
KeyedView = Callable[..., Any]
"""Takes the request, the caller and the URL's parameters; returns a response, or a value to encode
as JSON."""
SAFE_METHODS = ("GET", "HEAD")
_json = msgspec.json.Encoder().encode


class HubError(Exception):
    """A refusal; `code` decides which exception Hugging Face's libraries raise."""

    def __init__(self, status: int, message: str, code: str = "", wait: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.wait = status, message, code, wait


class RepoNotFound(HubError):
    """There is no such adapter, or it is another tenant's; the response is the same."""

    def __init__(self) -> None:
        super().__init__(404, "Repository not found", "RepoNotFound")


class RevisionNotFound(HubError):
    def __init__(self, message: str) -> None:
        super().__init__(404, message, "RevisionNotFound")


class EntryNotFound(HubError):
    """There is no such file."""

    def __init__(self) -> None:
        super().__init__(404, "Entry not found", "EntryNotFound")


def hub_view(
    *methods: str, needs: Permission = Permission.READ_TENANT
) -> Callable[[KeyedView], View]:
    """Turn a function into a view for these methods, for keys that have the permission `needs`. If
    the URL names a `tenant`, it must be the key's own."""

    def make(answer: KeyedView) -> View:
        @wraps(answer)
        def view(request: HttpRequest, **named: Any) -> HttpResponseBase:
            if request.method not in methods:
                raise HubError(405, f"This URL does not support {request.method}.")
            caller = _authenticate(request)
            if named.pop("tenant", caller.tenant.slug) != caller.tenant.slug:
                raise RepoNotFound
            caller.require(needs)
            answered = answer(request, caller, **named)
            return answered if isinstance(answered, HttpResponseBase) else reply(answered)

        return refusing(view)

    return make


def refusing(view: View) -> View:
    """Turn a view's errors into responses in the hub's form."""

    @csrf_exempt
    @wraps(view)
    def guarded(request: HttpRequest, **named: Any) -> HttpResponseBase:
        try:
            return view(request, **named)
        except HubError as error:
            return refusal(error)
        except UploadRefused as error:
            return refusal(HubError(error.status_code, error.message, wait=error.wait))
        except NotPermitted as error:
            return refusal(HubError(403, str(error)))
        except DatabaseError as error:
            log.error("database_unavailable", error=str(error))
            return refusal(HubError(503, "The database is unavailable.", wait=1))

    return guarded


@csrf_exempt
def not_found(request: HttpRequest, **named: Any) -> HttpResponse:
    """For addresses that other hubs have and this one does not."""
    message = (
        "There is no resource at this URL. This hub supports only pushing and pulling adapters."
    )
    return refusal(HubError(404, message))


def reply(body: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(_json(body), "application/json", status)


def refusal(error: HubError) -> HttpResponse:
    message = short(error.message)
    response = reply({"error": message}, error.status)
    response["X-Error-Message"] = in_header(message)
    if error.code:
        response["X-Error-Code"] = error.code
    if error.wait is not None:
        response["Retry-After"] = str(error.wait)
    return response


def in_header(message: str) -> str:
    """The message as one line of ASCII."""
    return " ".join(message.split()).encode("ascii", "backslashreplace").decode()


def read(request: HttpRequest, shape: type[Any]) -> Any:
    """The body as this struct; unknown fields are ignored, as new releases of clients add some.

    Raises:
        HubError: the body does not have this form.
    """
    try:
        return msgspec.json.decode(request.body, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HubError(HTTPStatus.BAD_REQUEST, f"The body is invalid: {error}") from None


def _authenticate(request: HttpRequest) -> Caller:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    presented = secret.strip() if scheme.lower() == "bearer" else ""
    try:
        key = ApiKey.objects.authenticate(presented, timezone.now())
    except InvalidApiKey:
        # With any other message, the client takes this for a repository that does not exist.
        raise HubError(401, "Invalid credentials in Authorization header") from None
    if request.method not in SAFE_METHODS:
        act_as(actor_of(request, key))
    return Caller(key.tenant, key=key)
