"""Estimates what a request will use before it runs, to reserve that in the limits.

Pure arithmetic, of operations that generate text; others override `Operation.estimate` and
`Operation.bound`.
"""

from __future__ import annotations

import msgspec

from inference.errors import ContextLengthExceeded
from inference.interfaces.limiter import ReservationRequest
from inference.link.workload import Workload

EXTENSION_TOKENS = 1024
"""Output tokens reserved at first for each choice of a stream without `max_tokens`, and then added
to its reservation each time it needs more."""
LEAST_TOKENS = 16
"""Fewest output tokens per choice for which a request without `max_tokens` is worth starting."""
WHOLE_TOKENS = 4096
"""Most output tokens per choice of an answer that neither streams nor sets `max_tokens`, where a
token limit applies: such an answer can't be cut once it outgrows its reservation."""
MAX_TOKENS = 1 << 18
"""Most tokens of a request's prompts together, if they come as tokens, unless the model's context
is longer. An engine decodes them on the loop that all streams share: 30 ms for this many, a second
for as many as fit into a body."""


class Estimate(msgspec.Struct, frozen=True):
    """What to reserve for a call, and whether more may be reserved for it while it runs.

    `workload` is the call's, with the length of its prompts.
    """

    workload: Workload
    ask: ReservationRequest
    grows: bool


def with_prompt(workload: Workload, prompt_tokens: int, max_model_len: int) -> Workload:
    """A call's workload with the length of its prompts: counted if they come as tokens, else
    `prompt_tokens`; at most what engines take. `max_model_len` is in tokens, 0 if unknown.

    Without that bound a body that is mostly something else would wait for an empty engine, and
    other requests behind it.

    Raises:
        ContextLengthExceeded: the prompts come as tokens and have too many.
    """
    context = max_model_len or MAX_TOKENS
    most, tokens = workload.prompts * context, workload.prompt_tokens
    if tokens > (bound := min(most, max(context, MAX_TOKENS))):
        raise ContextLengthExceeded(
            f"`prompt` has {tokens} tokens: it can have at most {bound}.", param="prompt"
        )
    return msgspec.structs.replace(workload, prompt_tokens=min(tokens or prompt_tokens, most))


def ask_for(workload: Workload, max_model_len: int, *, stream: bool = False) -> ReservationRequest:
    """What to reserve for a call; `max_model_len` is in tokens, 0 if unknown.

    A call with `max_tokens` gets all of it or is refused. A stream without it starts with
    EXTENSION_TOKENS and extends its reservation as it goes.
    """
    prompt_tokens, choices = workload.prompt_tokens, workload.choices
    if (max_tokens := workload.max_tokens) is not None:
        most = min(max_tokens, max_model_len or max_tokens)
        wanted = choices * max(0, most)
        return ReservationRequest(prompt_tokens, wanted, wanted)
    most = EXTENSION_TOKENS if stream else WHOLE_TOKENS
    wanted = choices * min(most, _room(prompt_tokens, max_model_len))
    return ReservationRequest(prompt_tokens, wanted, min(wanted, choices * LEAST_TOKENS))


def _room(prompt_tokens: int, max_model_len: int) -> int:
    """Tokens that the context has left beside the prompt. At least half of it: a prompt estimated
    too long must not cut answers short, and the engine knows where the context ends."""
    if not max_model_len:
        return WHOLE_TOKENS
    return max(1, max_model_len // 2, max_model_len - prompt_tokens)
