"""How the management API reads JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import msgspec
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser


class StrictJSONParser(JSONParser):
    """JSON as RFC 8259 has it. Python's reader lets half of a surrogate pair through, which then no
    answer that repeats it can be encoded with."""

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
