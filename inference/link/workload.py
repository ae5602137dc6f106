"""What a request asks an engine to compute: the one place for these figures, from its body to the
engine's queue."""

from __future__ import annotations

from inference.link.values import Value


class Workload(Value, frozen=True):
    """What a request asks an engine to compute. Passed on by reference, never copied into others.

    `prompt_tokens` counts all `prompts` together: exact if they come as tokens; for text 0 in a
    parsed body, and an estimate once the request is admitted. Each text of the body may be part of
    up to `rereads` prompts. `choices` is the number of texts to generate, over all prompts;
    `max_tokens` bounds each, None if only the context does; `logprobs` is how many
    log-probabilities are requested with each token of each choice.
    """

    prompts: int = 1
    rereads: int = 1
    prompt_tokens: int = 0
    choices: int = 1
    max_tokens: int | None = None
    logprobs: int = 0


ONE_CHOICE = Workload()
"""One prompt of unknown length, and one choice as long as the context lets it be."""
NO_OUTPUT = Workload(max_tokens=0)
"""One prompt, of which nothing is generated."""
