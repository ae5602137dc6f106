"""What every operation of the OpenAPI document has."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from tenants.api.authentication import ApiKeyAuthentication
from tenants.api.permissions import Operating
from tenants.api.problems import MEDIA_TYPE, ProblemSerializer

TENANT = OpenApiParameter(
    "tenant",
    str,
    description="The tenant's slug. A key has one tenant; a person with one may leave it out.",
)


class Schema(AutoSchema):
    """Adds `?tenant=` and the body of errors."""

    def get_override_parameters(self) -> list[Any]:
        of_no_tenant = self.path.endswith("/tenants") or Operating in self.view.permission_classes
        return [] if "{slug}" in self.path or of_no_tenant else [TENANT]

    def _get_response_bodies(self, *args: Any, **options: Any) -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(*args, **options)
        problem = self._get_response_for_code(  # type: ignore[no-untyped-call]
            ProblemSerializer, "default", [MEDIA_TYPE]
        )
        return bodies | {"default": problem | {"description": "What went wrong (RFC 9457)."}}


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = ApiKeyAuthentication
    name = "apiKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "An API key, `lk_...`."}
