"""Checks that every view of the management API makes before it handles a request."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from django.http import HttpRequest, QueryDict
from rest_framework.exceptions import (
    MethodNotAllowed,
    ParseError,
    UnsupportedMediaType,
    ValidationError,
)
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.views import APIView

from tenants.api.parsing import StrictJSONParser, measure


class StrictView(APIView):
    """Refuses what would otherwise be ignored: unknown query parameters, and bodies that are not
    read."""

    takes_tenant: ClassVar[bool] = False
    """Whether `?tenant=` selects the tenant."""
    parameters: ClassVar[Collection[str]] = ()
    """Query parameters besides those of filters and pagination."""
    bodiless: ClassVar[Collection[str]] = ()
    """Actions that read no JSON although their method has a body."""
    further_errors: ClassVar[Collection[int]] = ()
    """Error statuses besides those that any endpoint has, for the OpenAPI document."""

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        measure(request)
        return super().initialize_request(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        method = request.method or ""
        if method not in self.allowed_methods:  # before authentication: the document is public
            raise MethodNotAllowed(method)
        super().initial(request, *args, **kwargs)
        require_known(request.query_params, self.known_parameters)
        if method not in SAFE_METHODS:
            self._require_readable(request)

    @property
    def allowed_methods(self) -> list[str]:
        """Excludes OPTIONS, which is answered with 405 unless the view defines its own."""
        own = type(self).options is not APIView.options
        return [method for method in super().allowed_methods if method != "OPTIONS" or own]

    @property
    def known_parameters(self) -> set[str]:
        """All parameters that this request's query may have."""
        known = {*self.parameters, *(["tenant"] if self.takes_tenant else [])}
        if isinstance(self, GenericAPIView) and getattr(self, "action", None) == "list":
            if self.paginator is not None:
                known |= {
                    one["name"] for one in self.paginator.get_schema_operation_parameters(self)
                }
            if self.filter_backends and (filters := getattr(self, "filterset_class", None)):
                known |= {*filters.base_filters}
        return known

    def _require_readable(self, request: Request) -> None:
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.strip().lower() != "identity":
            raise UnsupportedMediaType(
                encoding,
                f"The Content-Encoding `{encoding}` is not supported: send the body unencoded.",
            )
        reads_json = StrictJSONParser in self.parser_classes and request.method != "DELETE"
        if reads_json and getattr(self, "action", None) not in self.bodiless:
            if request.META.get("CONTENT_LENGTH") in (None, "", "0"):
                raise ParseError("The body is missing: send a JSON object.")


def require_known(given: QueryDict, known: Collection[str]) -> None:
    """Refuse unknown parameters, and those with no value or several: the answer to a query with a
    misspelt filter would be mistaken for a filtered one.

    Raises:
        ValidationError: it names the parameter.
    """
    for name, values in given.lists():
        if name not in known:
            there = (
                f"Unknown parameter. Allowed are {', '.join(sorted(known))}."
                if known
                else "Unknown parameter. This URL has no query parameters."
            )
            raise ValidationError({name: there})
        if len(values) > 1:
            raise ValidationError({name: "The parameter must not be repeated."})
        if not values[0] and name != "tenant":  # a user without a tenant may leave it empty
            raise ValidationError({name: "The parameter must not be empty."})
