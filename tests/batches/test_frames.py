"""What workers and gateways read of each other's messages."""

from __future__ import annotations

import msgspec
import pytest

from inference.gateway.lines import frames
from inference.gateway.lines.frames import (
    SHOWN_TAG,
    LineAnswer,
    LineNews,
    OpenBatch,
    UnknownMessage,
)

pytestmark = pytest.mark.pure


def test_each_end_reads_what_the_other_sends() -> None:
    batch = OpenBatch("batch_1", 7, 1795370511.25, "chat", "")
    news = LineNews([("batch_1", 7)], [LineAnswer("batch_1", 6, 200, b"{}")])
    assert frames.to_gateway.decode(frames.encode(batch)) == batch
    assert frames.to_worker.decode(frames.encode(news)) == news


@pytest.mark.parametrize("decoder", [frames.to_gateway, frames.to_worker])
def test_a_message_of_a_later_release_is_known_by_its_tag(
    decoder: frames.Decoder[LineNews],
) -> None:
    assert decoder.decode(b"\x92\xa5hullo\x01") == UnknownMessage("hullo")
    long = msgspec.msgpack.encode(["x" * 1000, 1])
    assert decoder.decode(long) == UnknownMessage("x" * SHOWN_TAG)


@pytest.mark.parametrize("decoder", [frames.to_gateway, frames.to_worker])
@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x01", b"\x90", b"\x91\x07"])
def test_what_is_no_message_is_an_error(decoder: frames.Decoder[LineNews], message: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoder.decode(message)


def test_a_known_message_with_wrong_fields_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        frames.to_worker.decode(b"\x93\xa4news\x01\x02")
    with pytest.raises(msgspec.DecodeError):
        frames.to_gateway.decode(msgspec.msgpack.encode(["ask", 1]))
