"""An error is short and can be encoded, whatever a client sent."""

from __future__ import annotations

import msgspec
import pytest

from inference.errors import (
    MAX_MESSAGE,
    MAX_PARAM,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    UnknownModel,
)
from inference.link.wire import Fault
from inference.operations.error_shapes import OPENAI

pytestmark = pytest.mark.pure


def test_errors_do_not_repeat_client_input_in_full() -> None:
    error = InvalidRequest(f"`x` is {'y' * 324_000}: it must be one of a, b.", param="z" * 9000)
    assert len(error.message) == MAX_MESSAGE
    assert error.message.startswith("`x` is yyy")
    assert error.message.endswith("yyy: it must be one of a, b.")
    assert error.param == "z" * MAX_PARAM
    assert str(error) == error.message


def test_a_short_one_is_as_it_was_said() -> None:
    assert NotFound("x" * MAX_MESSAGE).message == "x" * MAX_MESSAGE
    assert UnknownModel().message == "The model does not exist, or this API key may not use it."
    assert UnknownModel().param is None


def test_lone_surrogates_in_messages_are_encodable() -> None:
    error = InvalidRequest("`\ud800` is nothing.", param="a\udc00")
    assert (error.message, error.param) == ("`?` is nothing.", "a?")
    assert b'"a?"' in OPENAI.body(error)
    assert msgspec.msgpack.encode(Fault.of(error))


@pytest.mark.parametrize(
    ("retry_after_s", "header"),
    [(None, None), (0, "1"), (0.4, "1"), (1.4, "2"), (60, "60"), (3600, "60")],
)
def test_clients_retry_after_whole_seconds(retry_after_s: float | None, header: str | None) -> None:
    assert Overloaded(retry_after_s=retry_after_s).retry_header == header


def test_method_not_allowed_crosses_the_link_like_any_error() -> None:
    fault = Fault.of(MethodNotAllowed("No.", allowed=("GET", "HEAD")))
    error = fault.error()
    assert isinstance(error, MethodNotAllowed)
    assert (error.message, error.allowed) == ("No.", ())
