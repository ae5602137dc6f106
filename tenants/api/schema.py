"""What all operations of the OpenAPI document share, and what is added to it at the end."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework.permissions import SAFE_METHODS

from tenants.api.authentication import ApiKeyAuthentication
from tenants.api.openai import document
from tenants.api.problems import ProblemSerializer
from tenants.api.serializers.strict import StrictMixin
from tenants.problem_details import MEDIA_TYPE

TENANT = OpenApiParameter(
    "tenant",
    str,
    description="The tenant's slug. Optional for API keys and for users with only one tenant.",
)
ANYWHERE = {400, 401, 403, 406, 431, 500, 503}
"""Error statuses of any endpoint."""
CHANGING = {409, 413}
"""Further error statuses of endpoints that change something."""
ERRORS = {
    400: "A parameter, a header or the body is invalid. `errors` lists the fields.",
    401: "The request has no API key and no session, or the key can no longer be used.",
    403: "The caller lacks the permission, or a request with a session lacks the CSRF token.",
    404: "The resource does not exist, or the caller may not see it.",
    406: "The response is not available in a media type that `Accept` allows.",
    409: "The current state does not allow this. `code` tells why.",
    412: "The header `Tus-Resumable` is missing or has an unsupported version.",
    413: "The body is too large.",
    415: "The body's media type or encoding is not supported.",
    429: "Too many requests or uploads at the same time. Retry after `Retry-After`.",
    431: "The headers are too large.",
    500: "Internal server error.",
    503: "The database or another service is unavailable. Retry after `Retry-After`.",
    507: "The server's disk is full.",
}
REQUEST_ID = {
    "description": "Identifies the request in the logs. Include it in support requests.",
    "schema": {"type": "string"},
}
OF_STATUS = {
    401: {"WWW-Authenticate": "The supported authentication scheme."},
    429: {"Retry-After": "Seconds to wait before retrying."},
    503: {"Retry-After": "Seconds to wait before retrying."},
}
"""Headers of error responses, by status."""


def _name(status: int) -> str:
    return HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")


class Schema(AutoSchema):
    """Adds `?tenant=`, errors and the CSRF token; marks the fields that an answer always has."""

    def get_override_parameters(self) -> list[Any]:
        return [TENANT] if getattr(self.view, "takes_tenant", False) else []

    def get_auth(self) -> list[Any]:
        """Unsafe methods need the CSRF token with a session cookie."""
        ways: list[dict[str, Any]] = super().get_auth()
        if self.method in SAFE_METHODS:
            return ways
        return [way | ({"csrfToken": []} if "cookieAuth" in way else {}) for way in ways]

    def _get_request_body(self, *args: Any, **options: Any) -> Any:
        body = super()._get_request_body(*args, **options)  # type: ignore[no-untyped-call]
        return body and body | {"required": True}

    def _get_response_bodies(self, *args: Any, **options: Any) -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(*args, **options)
        self.resolve_serializer(ProblemSerializer, "response")
        refs = {
            str(status): {"$ref": f"#/components/responses/{_name(status)}"}
            for status in sorted(self._errors())
        }
        return bodies | refs

    def _errors(self) -> set[int]:
        found = ANYWHERE | {*getattr(self.view, "further_errors", ())}
        if "{" in self.path or self.get_override_parameters() or self._is_list_view():
            found |= {404}
        if self.method not in SAFE_METHODS:
            found |= CHANGING
        if self.method in ("POST", "PUT", "PATCH"):
            found |= {415}
        return found

    def _map_basic_serializer(self, serializer: Any, direction: str) -> Any:
        """An answer has all fields except those in the serializer's `absent`; a strict body has no
        additional ones."""
        schema = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        if direction == "request" and isinstance(serializer, StrictMixin):
            schema["additionalProperties"] = False
        if direction == "response":
            absent = getattr(serializer, "absent", ())
            schema["required"] = [name for name in schema["properties"] if name not in absent]
        return schema


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = ApiKeyAuthentication
    name = "apiKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API key, `lk_...`."}


def complete(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Adds shared components and operations that no view describes: a hook of drf-spectacular."""
    components = result["components"]
    components["headers"] = {"RequestId": REQUEST_ID}
    components["responses"] = {_name(status): _error(status) for status in ERRORS}
    components["securitySchemes"]["csrfToken"] = {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRFToken",
        "description": f"The value of the cookie `{settings.CSRF_COOKIE_NAME}`.",
    }
    _add_tus(result["paths"])
    for item in result["paths"].values():
        for operation in item.values():
            for response in operation["responses"].values():
                if "$ref" not in response:
                    response.setdefault("headers", {})["x-request-id"] = {
                        "$ref": "#/components/headers/RequestId"
                    }
    document.add(result)
    return result


def _add_tus(paths: dict[str, Any]) -> None:
    """Describes the HEAD and OPTIONS of uploads, which drf-spectacular omits."""
    every, one = paths["/api/v1/uploads"], paths["/api/v1/uploads/{id}"]
    progress = one["patch"]["responses"]["204"]["headers"] | _words("Upload-Metadata")
    resumable = [param for param in one["patch"]["parameters"] if param["name"] == "Tus-Resumable"]
    one["head"] = one["get"] | {
        "operationId": "uploads_measure",
        "description": "The offset from which to continue (tus 1.0).",
        "parameters": [*one["get"]["parameters"], *resumable],
        "responses": {
            "200": {"description": "The number of bytes received.", "headers": progress},
            **_refusals(one["patch"]),
        },
    }
    for item, name in ((every, "uploads_options"), (one, "uploads_options_of_one")):
        response = {
            "description": "Returned in headers.",
            "headers": _words("Tus-Extension", "Tus-Max-Size"),
        }
        item["options"] = item["get"] | {
            "operationId": name,
            "description": "The capabilities of this server (tus 1.0).",
            "responses": {"204": response, **_refusals(item["get"])},
        }


def _refusals(operation: dict[str, Any]) -> dict[str, Any]:
    return {code: body for code, body in operation["responses"].items() if "$ref" in body}


def _words(*names: str) -> dict[str, Any]:
    return {name: {"schema": {"type": "string"}} for name in names}


def _error(status: int) -> dict[str, Any]:
    headers: dict[str, Any] = {"x-request-id": {"$ref": "#/components/headers/RequestId"}}
    for name, description in OF_STATUS.get(status, {}).items():
        headers[name] = {"description": description, "schema": {"type": "string"}}
    return {
        "description": ERRORS[status],
        "headers": headers,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
