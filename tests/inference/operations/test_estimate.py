"""What is reserved for a request before it runs."""

from __future__ import annotations

from typing import Any

import pytest

from inference.errors import ContextLengthExceeded
from inference.interfaces.limiter import ReservationRequest
from inference.link.workload import Workload
from inference.operations.chat import CHAT
from inference.operations.estimate import (
    EXTENSION_TOKENS,
    LEAST_TOKENS,
    MAX_TOKENS,
    WHOLE_TOKENS,
    Estimate,
    ask_for,
)
from inference.operations.operation import Call

pytestmark = pytest.mark.pure

LONG = 100_000


def call(*, stream: bool = True, **asked: int) -> Call:
    return Call(CHAT, "m", stream, workload=Workload(**asked))


@pytest.mark.parametrize(
    ("given", "max_model_len", "ask"),
    [
        ({"max_tokens": 50}, LONG, ReservationRequest(10, 50, 50)),
        ({"max_tokens": 50, "choices": 3}, LONG, ReservationRequest(10, 150, 150)),
        ({"max_tokens": 50}, 30, ReservationRequest(10, 30, 30)),
        ({"max_tokens": 50}, 0, ReservationRequest(10, 50, 50)),
        ({"max_tokens": -5}, LONG, ReservationRequest(10, 0, 0)),
        ({}, LONG, ReservationRequest(10, EXTENSION_TOKENS, LEAST_TOKENS)),
        ({}, 30, ReservationRequest(10, 20, LEAST_TOKENS)),
        ({}, 12, ReservationRequest(10, 6, 6)),
        ({}, 1, ReservationRequest(10, 1, 1)),
        ({"stream": False}, LONG, ReservationRequest(10, WHOLE_TOKENS, LEAST_TOKENS)),
        (
            {"stream": False, "choices": 2},
            0,
            ReservationRequest(10, 2 * WHOLE_TOKENS, 2 * LEAST_TOKENS),
        ),
    ],
)
def test_what_is_asked_of_the_limits(
    given: dict[str, Any], max_model_len: int, ask: ReservationRequest
) -> None:
    one = call(prompt_tokens=10, **given)
    assert ask_for(one.workload, max_model_len, stream=one.stream) == ask


def test_an_operation_estimates_its_calls() -> None:
    stream, whole = call(), call(stream=False)
    ten, longest = Workload(prompt_tokens=10), Workload(prompt_tokens=2048)
    ask = ask_for(ten, LONG, stream=True)
    assert CHAT.estimate(stream, 10, LONG) == Estimate(ten, ask, grows=True)
    asked = CHAT.estimate(whole, 5000, 2048)
    assert asked == Estimate(longest, ask_for(longest, 2048), grows=False)
    assert CHAT.bound(whole, 100) == 100
    assert CHAT.bound(stream, 100) is None


def test_only_a_stream_without_max_tokens_grows() -> None:
    assert call().grows
    assert not call(max_tokens=5).grows
    assert not call(stream=False).grows


@pytest.mark.parametrize(
    ("given", "reserved", "bound"),
    [
        ({"stream": False}, 100, 100),
        ({"stream": False, "choices": 3}, 100, 33),
        ({"stream": False, "choices": 3}, 2, 1),
        ({"stream": False}, None, None),
        ({"stream": False, "max_tokens": 5}, 5, None),
        ({}, 100, None),
    ],
)
def test_an_answer_that_cannot_be_cut_is_bounded(
    given: dict[str, Any], reserved: int | None, bound: int | None
) -> None:
    assert CHAT.bound(call(**given), reserved) == bound


@pytest.mark.parametrize("stream", [True, False])
def test_an_estimate_beyond_the_context_cuts_no_answer_short(stream: bool) -> None:
    asked = ask_for(Workload(prompt_tokens=5000), 2048, stream=stream)
    assert asked == ReservationRequest(5000, 1024, LEAST_TOKENS)
    asked = ask_for(Workload(prompt_tokens=5000, max_tokens=500), 2048, stream=stream)
    assert asked == ReservationRequest(5000, 500, 500)


@pytest.mark.parametrize(
    ("given", "estimate", "max_model_len", "tokens"),
    [
        ({}, 300, 2048, 300),
        ({}, 5000, 2048, 2048),
        ({"choices": 4}, 5000, 2048, 2048),
        ({"choices": 4, "prompts": 2}, 5000, 2048, 4096),
        ({}, 5000, 0, 5000),
        ({"prompt_tokens": 7}, 300, 2048, 7),
        ({"prompt_tokens": 2048}, 5000, 2048, 2048),
        ({"prompt_tokens": 4 * MAX_TOKENS}, 5000, 4 * MAX_TOKENS, 4 * MAX_TOKENS),
    ],
)
def test_a_prompt_is_no_longer_than_engines_take(
    given: dict[str, Any], estimate: int, max_model_len: int, tokens: int
) -> None:
    assert CHAT.estimate(call(**given), estimate, max_model_len).workload.prompt_tokens == tokens


@pytest.mark.parametrize(
    ("given", "max_model_len", "most"),
    [
        ({"prompt_tokens": 2049}, 2048, 2048),
        ({"prompt_tokens": 4097, "choices": 8, "prompts": 2}, 2048, 4096),
        ({"prompt_tokens": MAX_TOKENS + 1}, 0, MAX_TOKENS),
        ({"prompt_tokens": MAX_TOKENS + 1, "prompts": 500}, 2048, MAX_TOKENS),
        ({"prompt_tokens": 4 * MAX_TOKENS + 1, "prompts": 2}, 4 * MAX_TOKENS, 4 * MAX_TOKENS),
    ],
)
def test_prompts_with_too_many_tokens_are_refused(
    given: dict[str, Any], max_model_len: int, most: int
) -> None:
    with pytest.raises(ContextLengthExceeded, match=f"it can have at most {most}"):
        CHAT.estimate(call(**given), 1, max_model_len)
