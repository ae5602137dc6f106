"""`lorikeet chat`: one question, or a conversation."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from lorikeet.api import Api, connected
from lorikeet.failures import Failure
from lorikeet.output import AsJson, say, show_json


def chat(
    model: Annotated[str, typer.Argument(help="Base model or adapter, such as support@2.")],
    prompt: Annotated[
        str,
        typer.Argument(
            help="The prompt, or - to read it from standard input. Without it: a conversation."
        ),
    ] = "",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum length of the answer in tokens.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2)] = None,
    as_json: AsJson = False,
) -> None:
    """Send a prompt to a model and print the answer as it arrives."""
    if as_json and not prompt:
        raise typer.BadParameter("--json requires a PROMPT")
    body: dict[str, Any] = {"model": model, "messages": []}
    if system:
        body["messages"].append({"role": "system", "content": system})
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if temperature is not None:
        body["temperature"] = temperature
    with connected() as api:
        if not prompt:
            _talk(api, body)
            return
        _add(body, "user", sys.stdin.read() if prompt == "-" else prompt)
        if as_json:
            show_json(api.infer("POST", "chat/completions", json=body))
        else:
            _answer(api, body)


def _talk(api: Api, body: dict[str, Any]) -> None:
    """A conversation, until the end of the input."""
    say("Ctrl-D ends the conversation.")
    while True:
        try:
            question = input("> ")
        except (EOFError, KeyboardInterrupt):
            say("")
            return
        if question.strip():
            _add(body, "user", question)
            _add(body, "assistant", _answer(api, body))


def _add(body: dict[str, Any], role: str, content: str) -> None:
    body["messages"].append({"role": role, "content": content})


def _answer(api: Api, body: dict[str, Any]) -> str:
    """Print the answer as it comes.

    Raises:
        Failure: the stream ended with an error.
    """
    parts: list[str] = []
    with api.streamed("chat/completions", {**body, "stream": True}) as events:
        for event in events:
            chunk = json.loads(event)
            if "error" in chunk:
                sys.stdout.write("\n")
                raise Failure(chunk["error"]["message"])
            for choice in chunk["choices"]:
                text = choice["delta"].get("content") or ""
                parts.append(text)
                sys.stdout.write(text)
                sys.stdout.flush()
    sys.stdout.write("\n")
    return "".join(parts)
