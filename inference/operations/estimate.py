"""What a request is going to use, before it runs: what the limits are asked for.

Pure arithmetic on a `Call`. An operation that generates text takes all of it as it is; another one
overrides `Operation.estimate` and `Operation.bound`.
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.errors import ContextLengthExceeded
from inference.grants import Ask
from inference.operations.call import Call

EXTENSION_TOKENS = 1024
"""What a stream that names no end starts with, and how much more it asks for at a time."""
LEAST_TOKENS = 16
"""A request that doesn't say how much it wants is not worth starting for fewer."""
WHOLE_TOKENS = 4096
"""What an answer gets at most that neither streams nor says how much it wants, where a limit of
tokens holds: such an answer can't be cut when it outgrows what was reserved."""
MAX_TOKENS = 1 << 18
"""Of prompts that come as tokens, together, unless a context holds more. An engine takes numbers
apart on the loop that all streams share: 30 ms for so many, a second for what a body can hold."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What to reserve for a call, and whether more may be reserved for it while it runs."""

    prompt_tokens: int
    ask: Ask
    grows: bool


def prompt_tokens_of(call: Call, estimate: int, max_model_len: int) -> int:
    """The length of its prompts: as it says itself, or the estimate, but no more than engines take.

    Else a body that is mostly something else would wait for an empty engine, and others behind it.

    Raises:
        ContextLengthExceeded: it has more tokens than that.
    """
    context = max_model_len or MAX_TOKENS
    most = call.prompts * context
    if call.tokens > (bound := min(most, max(context, MAX_TOKENS))):
        raise ContextLengthExceeded(
            f"`prompt` has {call.tokens} tokens: it can have {bound} at most.", param="prompt"
        )
    return min(call.tokens or estimate, most)


def ask_of(call: Call, prompt_tokens: int, max_model_len: int) -> Ask:
    """What to reserve for a call; `max_model_len` in tokens, 0 where it is not known.

    A call that says how much it wants gets all of it or is refused. A stream that doesn't starts
    with little and asks for more on its way.
    """
    if call.max_tokens is not None:
        most = min(call.max_tokens, max_model_len or call.max_tokens)
        wanted = call.choices * max(0, most)
        return Ask(prompt_tokens, wanted, wanted)
    most = EXTENSION_TOKENS if call.stream else WHOLE_TOKENS
    wanted = call.choices * min(most, _room(prompt_tokens, max_model_len))
    return Ask(prompt_tokens, wanted, min(wanted, call.choices * LEAST_TOKENS))


def _room(prompt_tokens: int, max_model_len: int) -> int:
    """What the context has room for beside the prompt. Half of it at the least: an estimate that is
    too long must not cut answers short, and the engine knows where the context ends."""
    if not max_model_len:
        return WHOLE_TOKENS
    return max(1, max_model_len // 2, max_model_len - prompt_tokens)


def grows(call: Call) -> bool:
    """Whether more may be reserved for it while it runs."""
    return call.stream and call.max_tokens is None


def bound_of(call: Call, reserved_tokens: int | None) -> int | None:
    """What each choice may generate at most by the limits; None where the call says so itself,
    may outgrow it, or nothing limits it."""
    if reserved_tokens is None or call.stream or call.max_tokens is not None:
        return None
    return max(1, reserved_tokens // call.choices)
