"""Decodes the fields of a JSON body that the gateway needs; errors say what is wrong with them."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from inference.errors import InvalidRequest
from inference.operations.bodies.shape import BodyShape

_MISSING = re.compile(r"Object missing required field `(\w+)`(?: - at `\$(.*)`)?")
_ANY_ELEMENT = "[...]"
"""How msgspec's paths denote a value of an object with arbitrary keys."""
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
MAX_INNER_CHARS = 1 << 20
"""Most characters of JSON within JSON, such as the arguments of calls: they are read in one step,
and no model writes as much."""
SEARCHED_BYTES = 1 << 16
"""How much of an invalid body is searched for the reason: enough for bodies that people write, and
quickly done."""


def decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Read the decoder's fields from a body; other fields are skipped. `BodyShape` has checked that
    the body is UTF-8; msgspec does so only for text that it decodes.

    Raises:
        InvalidRequest: not JSON, or a field has a wrong type.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {_half_pair(body) or error}.") from None


def require_model(model: str) -> None:
    """Check that the body names a model.

    Raises:
        InvalidRequest: the name is empty.
    """
    if not model:
        raise InvalidRequest("You must provide a model parameter.", param="model")


def decode_part(decoder: msgspec.json.Decoder[Any], part: bytes | msgspec.Raw, at: str) -> Any:
    """Read a part of a body, whose path is `at`. `decode` has checked that it is valid JSON.

    Raises:
        InvalidRequest: a field of it is wrong.
    """
    try:
        return decoder.decode(part)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error), at) from None


def convert(value: Any, kind: Any, at: str) -> Any:
    """As `decode_part`, for a part that is decoded already.

    Raises:
        InvalidRequest: it is not of this kind.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error), at) from None


class InnerJson:
    """Checks the texts of one body that will themselves be parsed as JSON. They are counted
    together; whether they are valid JSON is left to their parser."""

    def __init__(self) -> None:
        self._shape, self._left = BodyShape(), MAX_INNER_CHARS

    def check(self, text: str, param: str) -> None:
        """Check the next text.

        Raises:
            InvalidRequest: there is too much text, the counts are too high, or it has half of a
                surrogate pair.
        """
        self._left -= len(text)
        if self._left < 0:
            message = (
                f"`{param}`: the body has more than {MAX_INNER_CHARS} characters of arguments."
            )
            raise InvalidRequest(message, param=param)
        encoded = text.encode()
        self._shape.begin()
        try:
            self._shape.feed(encoded)
        except InvalidRequest as error:
            raise InvalidRequest(f"`{param}`: {error.message}", param=param) from None
        if half := _half_pair(encoded):
            raise InvalidRequest(f"`{param}`: {half}.", param=param)


def _half_pair(body: bytes) -> str:
    """The error message for half of a surrogate pair, if there is one; else empty."""
    found = _HALF_PAIR.search(body, 0, SEARCHED_BYTES)
    return f"`{found[0].decode()}` is a lone surrogate" if found else ""


def _invalid_field(message: str, at: str = "") -> InvalidRequest:
    """The error for a message of msgspec (``Expected `str`, got `int` - at `$.model` ``)."""
    if missing := _MISSING.fullmatch(message):
        param = _joined(at, missing[2] or "", missing[1])
        text = f"`{param}` is missing" if "." in param else f"You must provide a {param} parameter"
        return InvalidRequest(f"{text}.", param=param)
    what, path = _parted(message)
    param = _joined(at, path)
    if not param:
        return InvalidRequest(f"The body must be a JSON object: {what}.")
    return InvalidRequest(f"`{param}`: {what[0].lower()}{what[1:]}.", param=param)


def _parted(message: str) -> tuple[str, str]:
    """What is wrong, and its path, which is empty for the whole value. The first may contain
    anything that the client sent, of any length; the path does not."""
    what, at, path = message.rpartition(" - at `")
    if not at or not path.endswith("`"):
        return message, ""
    return what, path.partition("$")[2].rstrip("`")


def _joined(*steps: str) -> str:
    """A path such as `tools[1].function.name`, up to the first step that is unknown."""
    path = "".join(step if step.startswith((".", "[")) else f".{step}" for step in steps if step)
    return path.removeprefix(".").partition(_ANY_ELEMENT)[0]
