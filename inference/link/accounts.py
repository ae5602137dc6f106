"""To whom a request is billed, and what its engine reports that it used.

Msgpack arrays, as in `wire`: fields may only be appended.
"""

from __future__ import annotations

from inference.link.values import Count, Value


class Usage(Value, frozen=True):
    """The engine's final figures for one request. Times in seconds from the agent's receipt."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    queue_s: float = 0.0
    load_s: float = 0.0
    ttft_s: float | None = None
    total_s: float = 0.0
    is_estimated: bool = False
    """Whether the tokens are an estimate: the engine's server did not say what it used."""


class Dispatch(Value, frozen=True):
    """The engine to which an attempt was dispatched, and the most usage that it may report for it.

    `credential` is the row id of the engine's credential. `mac` binds all fields to the attempt and
    its account; `inference.gateway.fleet.dispatches` makes and checks it, agents only return it.
    """

    credential: int
    prompt_tokens: int
    output_tokens: int
    mac: bytes


class Account(Value, frozen=True):
    """The account that a request is billed to; the agent journals it without interpreting it.

    Row ids of the platform's database; `started_at` is a unix time in seconds, fixed by the gateway
    together with the request's id, so that both identify one event for ever.
    """

    tenant_id: int
    key_id: int
    started_at: float
    base_model: str
    adapter_id: int | None = None
    version_id: int | None = None
    price: tuple[int, int, int] = (0, 0, 0)
    """Prices when the request was reserved: micro-units of the currency per million tokens of
    prompt, cached prompt and output."""
    dispatch: Dispatch | None = None
    """Proof that a gateway dispatched this attempt; None until it is signed."""
    given_s: float = 0.0
    """Seconds from `started_at` until this attempt was sent to its engine. Like `trace_id`, only
    for people, and not signed."""
    trace_id: str = ""
    """Id of the request's OpenTelemetry trace, if it has one."""
    overflow: bool = False
    """Whether the attempt was dispatched to an overflow engine (`ModelInfo.overflow`)."""
    route: str = ""
    """The name of the route that chose the model, if one did."""


ATTEMPTS_OF_A_TURN = 1000
"""Attempt numbers reserved for each turn: more than one gateway uses for a request, as it tries
each engine once and moves twice."""


def turn_of(attempt: int) -> int:
    """The number of gateways that have handled the request, including this attempt's. Each that
    adopts it starts at `first_attempt`, so two gateways never use the same attempt number."""
    return 1 + (attempt - 1) // ATTEMPTS_OF_A_TURN


def first_attempt(turn: int) -> int:
    """The lowest attempt of a turn."""
    return 1 + (turn - 1) * ATTEMPTS_OF_A_TURN


RESENT_TURN = 1024
"""The first turn of a request that is sent again as a whole, as batch lines are. Gateways that
adopt a request use lower ones."""


def reservation_id(id: str, turn: int) -> str:
    """The id under which the limits reserve for this request. An adopted one keeps what was
    reserved; one that is sent again reserves anew each time."""
    return id if turn < RESENT_TURN else f"{id}.{turn}"


class LedgerEntry(Value, frozen=True):
    """One ended attempt of a request, as recorded in the engine's journal.

    `usage` is cumulative: the prompt once, and all output tokens of the answer so far, including
    those of lower attempts. So a request is billed by its highest attempt.

    `id` is the request's, made by the server and never reused; `model` is as the client wrote it;
    `finish_reason` is the answer's (`stop`, `length`, `tool_calls`), else `cancelled`, the reason
    of the cancel, or an error's code.
    """

    id: str
    account: Account
    model: str
    usage: Usage
    finish_reason: str
    attempt: int = 1
    inherited_tokens: int = 0
    """The output tokens that lower attempts generated and this one continued from."""


class Totals(Value, frozen=True):
    """Sums over ended requests."""

    requests: Count = 0
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    completion_tokens: Count = 0

    def plus(self, usage: Usage) -> Totals:
        """The totals with one more request; this one is not changed."""
        return Totals(
            self.requests + 1,
            self.prompt_tokens + usage.prompt_tokens,
            self.cached_tokens + usage.cached_tokens,
            self.completion_tokens + usage.completion_tokens,
        )

    def minus(self, some: Totals) -> Totals:
        """The totals without some of the requests; this one is not changed."""
        return Totals(
            self.requests - some.requests,
            self.prompt_tokens - some.prompt_tokens,
            self.cached_tokens - some.cached_tokens,
            self.completion_tokens - some.completion_tokens,
        )


NOBODY = Account(0, 0, 0.0, "")
