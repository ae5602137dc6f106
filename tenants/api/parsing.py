"""Parsing of request bodies in the management API."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import IO, Any

import msgspec
from django.http import HttpRequest
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser


class StrictJSONParser(JSONParser):
    """JSON according to RFC 8259. Python's own parser accepts half of a surrogate pair, and an
    answer that repeats it cannot be encoded."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        try:
            return msgspec.json.decode(stream.read())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ParseError(f"The body is not valid JSON: {error}.") from None


def measure(request: HttpRequest) -> None:
    """Set the length of a chunked body: Django and DRF treat a body without a length as empty."""
    body = getattr(request, "_stream", None)
    if not request.META.get("CONTENT_LENGTH") and body is not None and body.seekable():
        request.META["CONTENT_LENGTH"] = str(body.seek(0, io.SEEK_END))
        body.seek(0)
