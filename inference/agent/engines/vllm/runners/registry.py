"""The operations that vLLM runs here, and how. A new one is added to `RUNNERS`."""

from __future__ import annotations

from collections.abc import Mapping

from inference.agent.engines.vllm.runners.chat import ChatRunner
from inference.agent.engines.vllm.runners.completion import CompletionRunner
from inference.agent.engines.vllm.runners.runner import Runner
from inference.errors import InvalidRequest
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.operation import Operation

RUNNERS: Mapping[str, Runner] = {CHAT.name: ChatRunner(), COMPLETION.name: CompletionRunner()}


def runner_of(operation: Operation) -> Runner:
    """How to run it.

    Raises:
        InvalidRequest: vLLM doesn't, here.
    """
    if (runner := RUNNERS.get(operation.name)) is None:
        raise InvalidRequest(f"{operation.path} is not supported by this model.")
    return runner
