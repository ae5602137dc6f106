"""`POST /v1/responses/input_tokens`: counts the prompt tokens of a request for a response.

What the input continues is put in front of it by the gateway, as for a response. All of it is
counted, also what `truncation` would leave out or the context has no room for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inference.errors import InvalidRequest
from inference.link.workload import NO_OUTPUT
from inference.operations.bodies.fields import check_fields
from inference.operations.bodies.reading import decode, require_model
from inference.operations.chat import plain_messages
from inference.operations.instant import InstantOperation, PlainTokenizer, check_text
from inference.operations.openai import NULL
from inference.operations.responses import responses
from inference.operations.responses.call import ResponseCall
from inference.operations.responses.fields import (
    Conversation,
    ReasoningField,
    Truncation,
    check_one_continued,
    id_of,
    read_text,
    read_tools,
)
from inference.operations.responses.items import Input, ResponseItem, check_input, refers
from inference.operations.responses.responses import RESPONSES

UNSERVED: Mapping[str, tuple[Any, str]] = {
    **responses.UNSERVED,
    "personality": (None, "state the wanted style in `instructions`"),
}
"""See `fields.UNSERVED`."""


class InputTokensFields(msgspec.Struct, kw_only=True):
    """The fields that the gateway reads: those of OpenAI's API."""

    model: str
    input: Input | None = None
    conversation: Conversation = None
    instructions: str | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: ReasoningField | None = None
    text: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL
    truncation: Truncation | None = None


class InputTokens(InstantOperation):
    """Counts the prompt tokens of a request of `ResponsesOperation`."""

    name = "input_tokens"
    path = f"{RESPONSES.path}/input_tokens"
    accepted = frozenset({"input", "instructions", "reasoning", "tool_choice", "tools"})
    decoder = msgspec.json.Decoder(InputTokensFields)

    def parse(self, body: bytes) -> ResponseCall:
        """See `Operation`."""
        fields: InputTokensFields = decode(self.decoder, body)
        require_model(fields.model)
        check_one_continued(fields.conversation, fields.previous_response_id)
        call = ResponseCall(
            operation=self,
            model=fields.model,
            workload=NO_OUTPUT,
            body=body,
            conversation=id_of(fields.conversation),
            previous_response_id=fields.previous_response_id or "",
        )
        if fields.input is not None:
            check_input(fields.input, references=True)
            call.references = refers(fields.input)
        elif not call.continues:
            raise InvalidRequest("You must provide an input parameter.", param="input")
        check_text(_chars(fields), "input")
        read_text(fields.text)
        choice, tools = read_tools(fields.tools, fields.tool_choice)
        call.parsers = ("tool",) if tools and choice != "none" else ()
        return call

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Operation`. Returns the body as a chat."""
        check_fields(body, UNSERVED)
        switches = {"chat_template_kwargs": body.get("chat_template_kwargs")}
        return RESPONSES.allowed(super().allowed(body) | switches)

    def plain_answer(self, fields: dict[str, Any], tokenizer: PlainTokenizer) -> dict[str, Any]:
        """See `Operation`."""
        return self.answer(len(tokenizer.encode(plain_messages(fields["messages"]).whole)))

    def answer(self, tokens: int) -> dict[str, Any]:
        """The answer for a prompt of so many tokens."""
        return {"object": "response.input_tokens", "input_tokens": tokens}


def _chars(fields: InputTokensFields) -> int:
    """Characters of the input and instructions that a template may use."""
    given = fields.input or ""
    items = [ResponseItem(content=given)] if isinstance(given, str) else given
    texts = (text for item in items for text in item.texts())
    return len(fields.instructions or "") + sum(map(len, texts))


INPUT_TOKENS = InputTokens()
