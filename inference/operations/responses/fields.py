"""The fields of a request for a response that the gateway reads, and their checks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from inference.errors import InvalidRequest
from inference.operations.bodies.constraints import (
    ToolField,
    check_function_tools,
    check_schema,
    flat_name,
)
from inference.operations.bodies.ranges import Positive, TopLogprobs
from inference.operations.bodies.reading import decode_part
from inference.operations.openai import NULL, Identifier, SampledBody
from inference.operations.responses.items import Input


class FormatField(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, msgspec.Raw] | None = None
    description: str | None = None
    strict: bool | None = None


class TextField(msgspec.Struct):
    format: FormatField | None = None
    verbosity: str | None = None


class ReasoningField(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class _Allowed(msgspec.Struct):
    type: Literal["function"]
    name: str


class ChosenTools(msgspec.Struct):
    """A `tool_choice` object: one function by name, or a list of those that may be called."""

    type: Literal["function", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[_Allowed] = []

    @property
    def names(self) -> list[str]:
        """The functions that it names."""
        return [self.name or ""] if self.type == "function" else [one.name for one in self.tools]

    @property
    def must_use(self) -> bool:
        return self.type == "function" or self.mode == "required"

    def as_field(self) -> dict[str, Any]:
        """In the notation of this API."""
        if self.type == "function":
            return {"type": self.type, "name": self.name}
        tools = [{"type": "function", "name": name} for name in self.names]
        return {"type": self.type, "mode": self.mode, "tools": tools}

    def of_chat(self) -> dict[str, Any]:
        """In the notation of chats."""
        tools = [{"type": "function", "function": {"name": name}} for name in self.names]
        if self.type == "function":
            return tools[0]
        return {"type": self.type, self.type: {"mode": self.mode, "tools": tools}}


_Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""All except LOGPROBS ask for parts that no answer has here; thoughts are not encrypted."""
GivenChoice = Literal["none", "auto", "required"] | ChosenTools | None
Truncation = Literal["auto", "disabled"]
_ConversationId = Annotated[str, msgspec.Meta(max_length=64)]
_Key = Annotated[str, msgspec.Meta(max_length=64)]
_Value = Annotated[str, msgspec.Meta(max_length=512)]
Metadata = Annotated[dict[_Key, _Value], msgspec.Meta(max_length=16)]
_text = msgspec.json.Decoder(TextField | None)
_tool_choice = msgspec.json.Decoder(GivenChoice)


class _Conversation(msgspec.Struct):
    """The conversation that a response continues and is added to."""

    id: _ConversationId


Conversation = _ConversationId | _Conversation | None


def id_of(conversation: Conversation) -> str:
    """Its id, empty if there is none."""
    return conversation.id if isinstance(conversation, _Conversation) else conversation or ""


class ResponsesFields(SampledBody, kw_only=True):
    """The fields that the gateway reads of a request."""

    input: Input
    background: bool | None = None
    conversation: Conversation = None
    include: list[_Include] | None = None
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    max_tool_calls: int | None = None
    metadata: Metadata | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: ReasoningField | None = None
    safety_identifier: Identifier | None = None
    store: bool | None = None
    text: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL
    top_logprobs: TopLogprobs | None = None
    truncation: Truncation | None = None


def check_background(fields: ResponsesFields) -> None:
    """Check that it can run in the background, if it asks for that.

    Raises:
        InvalidRequest: it can't.
    """
    if fields.background and fields.store is False:
        message = (
            "`store` must not be false with `background`, because a background response is stored."
        )
        raise InvalidRequest(message, param="store")
    if fields.background and fields.stream:
        message = "`stream` is not supported with `background`: retrieve the response by its id."
        raise InvalidRequest(message, param="stream")


def check_conversation(fields: ResponsesFields) -> None:
    """Check that no field conflicts with `conversation`.

    Raises:
        InvalidRequest: one does.
    """
    if fields.conversation is None:
        return
    check_one_continued(fields.conversation, fields.previous_response_id)
    if fields.store is False:
        message = "`store` must not be false with `conversation`, because a conversation is stored."
        raise InvalidRequest(message, param="store")
    if fields.background:
        message = "`conversation` is not supported with `background`: use `previous_response_id`."
        raise InvalidRequest(message, param="conversation")


def check_one_continued(conversation: Conversation, previous_response_id: str | None) -> None:
    """Check that a request does not continue both a conversation and a response.

    Raises:
        InvalidRequest: it does.
    """
    if conversation is not None and previous_response_id is not None:
        message = (
            "`conversation` and `previous_response_id` exclude each other: send only one of them."
        )
        raise InvalidRequest(message, param="previous_response_id")


def read_text(raw: msgspec.Raw) -> TextField:
    """Read `text`, whose schema must be within the bounds of `constraints`.

    Raises:
        InvalidRequest: it is wrong or too large.
    """
    check_schema(raw, "text")
    text: TextField = decode_part(_text, raw, "text") or TextField()
    if text.verbosity not in (None, "medium"):
        raise InvalidRequest(
            "`text.verbosity` is not supported: state the wanted length in `instructions`.",
            param="text.verbosity",
        )
    if text.format is not None and text.format.type == "json_schema":
        for name in ("name", "schema"):
            if getattr(text.format, name) is None:
                param = f"text.format.{name}"
                raise InvalidRequest(f"`{param}` is missing.", param=param)
    return text


def read_tools(
    given: msgspec.Raw, tool_choice: msgspec.Raw
) -> tuple[str | ChosenTools, dict[tuple[str, str], ToolField]]:
    """`tool_choice`, and the functions among the `given` tools by namespace and name.

    Raises:
        InvalidRequest: one of them is wrong.
    """
    choice: str | ChosenTools = decode_part(_tool_choice, tool_choice, "tool_choice") or "auto"
    named = choice if isinstance(choice, ChosenTools) else None
    must_use = named.must_use if named else choice == "required"
    tools = check_function_tools(given, must_use=must_use)
    if (must_use or named) and not tools:
        raise InvalidRequest("`tool_choice` requires a tool: send `tools`.", param="tools")
    if named and not named.names:
        raise InvalidRequest(
            "`tool_choice.tools` must name at least one tool.", param="tool_choice"
        )
    known = {flat_name(*at) for at in tools}
    for name in named.names if named else ():
        if name not in known:
            raise InvalidRequest(
                f"`tool_choice` names the function `{name}`, which is not in `tools`.",
                param="tool_choice",
            )
    return choice, tools
