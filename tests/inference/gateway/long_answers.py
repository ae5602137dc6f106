"""Answers that take long enough to lose an engine or a gateway in the middle, and what a client
gets of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from inference.agent.engines.synthetic.engine import Behaviour
from tests.inference.operations.examples import messages, responses
from tests.inference.operations.items import as_chat, check_order, is_item_event
from tests.inference.rig import chat
from tests.inference.samples import MODEL

STEADY = Behaviour(tokens_per_second=400.0)
STALLS = Behaviour(tokens_per_second=400.0, stall_after_tokens=7)
"""Stalls in the middle of an answer, so that what the test then does happens there."""
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
LONG: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "seed": 7}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
SAID = "a word and another " * 40
"""The prompt. The engine repeats it up to the token limit."""


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL.name, "prompt": "Once upon a time"} | fields


ANSWERS = {
    "stream": (CHAT, chat(stream=True, **USAGE, **LONG)),
    "whole": (CHAT, chat(**LONG)),
    "stream of two": (CHAT, chat(stream=True, n=2, **USAGE, **LONG)),
    "two whole": (CHAT, chat(n=2, **LONG)),
    "completion": (COMPLETION, completion(stream=True, **USAGE, **LONG)),
    "messages": (MESSAGES, messages(content=SAID, stream=True, max_tokens=30)),
    "whole messages": (MESSAGES, messages(content=SAID, max_tokens=30)),
    "responses": (RESPONSES, responses(stream=True, max_output_tokens=30, **LONG)),
    "whole responses": (RESPONSES, responses(max_output_tokens=30, **LONG)),
}
"""By kind of answer: the path and the body of its request."""


@dataclass
class Answer:
    """What a client received of an answer. `said` leaves out `id` and `replayed`, so that two
    answers to one request can be compared."""

    id: str = ""
    replayed: bool = False
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    opened: int = 0
    """Number of messages that name the role."""

    async def read(self, response: httpx.Response) -> None:
        """Read the response to its end."""
        if response.headers["content-type"].startswith("application/json"):
            self._note(json.loads(await response.aread()))
            return
        events = []
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                events.append(json.loads(line.removeprefix("data: ")))
                self._note(events[-1])
        if is_item_event(events[0]) and not self.error:
            check_order(events)

    def _note(self, body: dict[str, Any]) -> None:
        if is_item_event(body):
            body = as_chat(body)
        if "error" in body:
            self.error = body["error"]["code"]
        for choice in body.get("choices", ()):
            said = choice.get("delta") or choice.get("message") or choice
            text = said.get("content") or said.get("text") or ""
            self.opened += "role" in said
            self.texts[choice["index"]] = self.texts.get(choice["index"], "") + text
            if choice["finish_reason"]:
                self.reasons[choice["index"]] = choice["finish_reason"]
        if "choices" in body:
            self.usage |= body.get("usage") or {}
        else:
            self._note_event(body)

    def _note_event(self, body: dict[str, Any]) -> None:
        """An event of Anthropic's API, or its whole answer."""
        self.opened += body.get("type") == "message_start"
        texts = [block["text"] for block in body.get("content", ())]
        texts.append(body.get("delta", {}).get("text", ""))
        if said := "".join(texts):
            self.texts[0] = self.texts.get(0, "") + said
        if reason := body.get("stop_reason") or body.get("delta", {}).get("stop_reason"):
            self.reasons[0] = {"max_tokens": "length", "end_turn": "stop"}[reason]
        if counted := body.get("usage"):
            prompt = counted["input_tokens"] + counted["cache_read_input_tokens"]
            self.usage = {
                "prompt_tokens": prompt,
                "completion_tokens": counted["output_tokens"],
            }

    @property
    def said(self) -> tuple[Any, ...]:
        return self.texts, self.reasons, self.usage, self.error, self.opened
