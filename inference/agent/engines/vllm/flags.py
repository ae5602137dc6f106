"""vLLM's own command-line flags, for what an engine passes through to it."""

from __future__ import annotations

# Variables that vLLM and torch read while they are imported.
from inference.agent.engines.vllm import environment as _environment  # isort: skip  # noqa: F401

import argparse
from typing import Any, Never

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from inference.agent.engines.profile import BadProfile

UNKNOWN = "unrecognized arguments: "


class _Parser(FlexibleArgumentParser):  # type: ignore[misc]  # vLLM is untyped here
    """Raises BadProfile instead of ending the process."""

    def error(self, message: str) -> Never:
        if message.startswith(UNKNOWN):
            flags = message.removeprefix(UNKNOWN)
            message = f"neither `manage.py engine` nor vLLM's engine has these options: {flags}"
        raise BadProfile(message)


def values_of(arguments: list[str]) -> dict[str, Any]:
    """What these flags set, by the field of vLLM's AsyncEngineArgs.

    Raises:
        BadProfile: one is no engine argument of vLLM, or has a wrong value.
    """
    parser = _Parser(add_help=False, argument_default=argparse.SUPPRESS)
    AsyncEngineArgs.add_cli_args(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS  # only what is given counts
    given: dict[str, Any] = vars(parser.parse_args(arguments))
    return given
