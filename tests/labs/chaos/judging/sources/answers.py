"""Reads an answer as it arrives, and checks it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from inference.agent.engines.synthetic.tokens import TOKEN_CHARS
from tests.labs.chaos.judging.facts import Counts, Received
from tests.labs.chaos.judging.sources.reading import error_of, reader_of


async def receive(
    response: httpx.Response, one: Received, leaves_after: float | None, *, four_letters: bool
) -> None:
    """Record in `one` what arrives, up to the end or to `leaves_after` pieces of a stream.

    `four_letters`: each of the engine's tokens has four characters, so that a text tells its number
    of tokens; otherwise each piece is only known to have at least one.

    Raises:
        httpx.HTTPError: the connection broke.
    """
    one.status = response.status_code
    one.id = response.headers.get("x-request-id", "").removeprefix("req_")
    one.replayed = "idempotent-replayed" in response.headers
    answer = _Answer(one, four_letters)
    try:
        if one.status != 200:
            one.error = error_of(json.loads(await response.aread())["error"])
        elif one.streams:
            await _read_stream(response, answer, leaves_after)
        else:
            answer.add(json.loads(await response.aread()))
            answer.finish()
    except (ValueError, KeyError, TypeError) as error:
        one.wrong = f"not an answer, with status {one.status}: {error!r}"


async def _read_stream(
    response: httpx.Response, answer: _Answer, leaves_after: float | None
) -> None:
    one = answer.one
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            answer.finish()
        elif line and not line.startswith("event: "):
            answer.add(json.loads(line.removeprefix("data: ")))
        if leaves_after is not None and answer.pieces >= leaves_after:
            one.left = not (one.complete or one.wrong or one.error)
            return
    if not (one.complete or one.wrong or one.error):
        one.wrong = "the stream ended without an end"


@dataclass
class _Answer:
    """What has arrived so far, of all choices."""

    one: Received
    four_letters: bool
    texts: dict[int, str] = field(default_factory=dict)
    rest: str = ""
    pieces: int = 0
    usage: Counts | None = None
    limited: bool = False

    def add(self, body: dict[str, Any]) -> None:
        """Add a chunk, or the whole body."""
        said = reader_of(self.one.path)(body)
        self.one.error = self.one.error or said.error
        for index, text in said.texts.items():
            self.texts[index] = self.texts.get(index, "") + text
            self.pieces += bool(text)
        self.rest += said.rest
        self.usage = said.usage or self.usage
        self.limited = self.limited or said.limited
        self.one.tokens = self._tokens()
        if said.ended:
            self.finish()

    def finish(self) -> None:
        """The answer is complete: its text must fit its usage."""
        one = self.one
        if one.error:
            return
        if self.usage is None:
            one.wrong = "the answer does not say its usage"
            return
        said = self.usage.completion_tokens
        if self.four_letters and not self.limited and said != one.tokens:
            one.wrong = f"the text has {one.tokens} tokens, but the usage says {said}"
            return
        one.complete, one.usage, one.limited = True, self.usage, self.limited
        one.text = "\0".join([*self.texts.values(), self.rest])

    def _tokens(self) -> int:
        """The least number of tokens in what has arrived."""
        if not self.four_letters:
            return self.pieces
        return sum(-(-len(text) // TOKEN_CHARS) for text in self.texts.values())
