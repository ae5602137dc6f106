"""Pagination of lists."""

from __future__ import annotations

import re
from typing import Any

from rest_framework.exceptions import ValidationError
from rest_framework.pagination import CursorPagination, PageNumberPagination
from rest_framework.request import Request

POSITIVE = re.compile(r"0*[1-9][0-9]{0,8}")
ADDRESS = {"type": ["string", "null"], "format": "uri"}
INTEGER = {"type": "integer", "minimum": 1, "maximum": 999_999_999}


class Pages(PageNumberPagination):
    """`?page=2&limit=50`: pages of at most 200 items."""

    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"
    last_page_strings: tuple[str, ...] = ()

    def get_page_number(self, request: Request, paginator: Any) -> str:
        return str(_positive(request, self.page_query_param) or 1)

    def get_page_size(self, request: Request) -> int:
        asked = _positive(request, self.page_size_query_param)
        return min(asked or self.page_size, self.max_page_size)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        most = f"Default: {self.page_size}, maximum: {self.max_page_size}."
        described = {
            "page": "Page number, starting at 1.",
            "limit": f"Number of results per page. {most}",
        }
        return [
            {"name": name, "in": "query", "schema": INTEGER, "description": description}
            for name, description in described.items()
        ]

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["count", "next", "previous", "results"],
            "properties": {
                "count": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "Number of results on all pages.",
                },
                "next": ADDRESS,
                "previous": ADDRESS,
                "results": schema,
            },
        }


class NewestFirst(CursorPagination):
    """`?limit=50&before=<cursor>`: for logs, which are too long to be counted."""

    ordering = "-id"
    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"
    cursor_query_param = "before"

    def get_page_size(self, request: Request) -> int:
        asked = _positive(request, "limit")
        return min(asked or self.page_size, self.max_page_size)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        most = f"Number of results. Default: {self.page_size}, maximum: {self.max_page_size}."
        before = "Cursor of the page, as contained in `next`."
        return [
            {"name": "limit", "in": "query", "schema": INTEGER, "description": most},
            {"name": "before", "in": "query", "schema": {"type": "string"}, "description": before},
        ]

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": ADDRESS, "previous": ADDRESS, "results": schema},
        }


def _positive(request: Request, name: str) -> int | None:
    """The parameter's value, None if it is not given.

    Raises:
        ValidationError: it is not an integer from 1 to 999999999.
    """
    text = request.query_params.get(name)
    if text is None:
        return None
    if not POSITIVE.fullmatch(text):
        raise ValidationError({name: f"`{text}` is not an integer from 1 to 999999999."})
    return int(text)
