"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from inference.errors import InvalidRequest
from inference.operations.bodies.beginnings import Beginnings
from inference.operations.bodies.constraints import (
    check_named,
    check_tools,
    offer_tools,
    only_allowed,
    read_tool_choice,
)
from inference.operations.bodies.fields import OF_ANSWERS, SAMPLING
from inference.operations.bodies.ranges import Positive
from inference.operations.bodies.reading import InnerJson
from inference.operations.openai import NULL, Fields, Identifier, OpenAIOperation, top_of
from inference.operations.operation import PlainPrompt

TEMPLATE_SWITCHES = ("enable_thinking", "thinking")
"""The fields of `chat_template_kwargs` that clients may set; others could reach the tokenizer."""


_ROLE = {"role": "assistant"}
MESSAGE: dict[str, Any] = _ROLE | {"content": None, "refusal": None, "annotations": []}
"""The fields that every message of an answer has."""


class _CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct):
    id: str
    function: _CalledFunction
    type: str | None = None


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct):
    """A message, checked here because vLLM's validation took ten seconds to report a wrong field in
    some thousands of them."""

    role: str | None = None
    content: str | list[_Part] | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None

    def content_texts(self) -> Iterator[str]:
        """The texts of its content."""
        if isinstance(self.content, list):
            yield from (part.text or part.refusal or "" for part in self.content)
        elif self.content:
            yield self.content

    def texts(self) -> Iterator[str]:
        """The texts of it that a template may use, the longest ones separately."""
        about = (self.role, self.name, self.tool_call_id, self.reasoning, self.reasoning_content)
        yield "\0".join([part or "" for part in about])
        yield from self.content_texts()
        for call in self.tool_calls or ():
            yield call.function.name
            yield call.function.arguments


class _ChatFields(Fields):
    messages: list[ChatMessage] = []
    echo: bool | None = None
    max_completion_tokens: Positive | None = None
    max_tokens: Positive | None = None
    tool_choice: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL
    logprobs: msgspec.Raw = NULL
    top_logprobs: msgspec.Raw = NULL
    parallel_tool_calls: bool | None = None
    safety_identifier: Identifier | None = None


class Chat(OpenAIOperation[_ChatFields]):
    """Messages in, the assistant's next message out."""

    name = "chat"
    path = "/v1/chat/completions"
    id_prefix = "chatcmpl"
    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"
    decoder = msgspec.json.Decoder(_ChatFields)
    has_service_tier = True
    accepted = (
        SAMPLING
        | OF_ANSWERS
        | {
            "add_generation_prompt",
            "continue_final_message",
            "include_reasoning",
            "max_completion_tokens",
            "messages",
            "parallel_tool_calls",
            "reasoning_effort",
            "tool_choice",
            "tools",
            "top_logprobs",
        }
    )

    def check_prompt(self, fields: _ChatFields) -> None:
        """There must be a message, and the arguments of earlier tool calls, which are JSON, must be
        within the bounds of `InnerJson`."""
        if not fields.messages:
            raise InvalidRequest("`messages` must have at least one message.", param="messages")
        inner: InnerJson | None = None
        for i, message in enumerate(fields.messages):
            for j, call in enumerate(message.tool_calls or ()):
                inner = inner or InnerJson()
                param = f"messages[{i}].tool_calls[{j}].function.arguments"
                inner.check(call.function.arguments, param)

    def wanted_tokens(self, fields: _ChatFields) -> int | None:
        """`max_completion_tokens`, else the older `max_tokens`."""
        most = fields.max_completion_tokens
        return fields.max_tokens if most is None else most

    def parsers(self, fields: _ChatFields) -> tuple[str, ...]:
        """The parser of tool calls, if there are tools that may be called."""
        if fields.tools is NULL and fields.tool_choice is NULL:
            return ()
        choice = read_tool_choice(fields.tool_choice)
        are_tools = check_tools(fields.tools, must_use=choice.must_use)
        check_named(fields.tools, choice.names)
        return ("tool",) if are_tools and choice.may_use else ()

    def beginnings(self, fields: _ChatFields) -> Beginnings:
        """A beginning ends with each message; all include the tools."""
        tools = bytes(fields.tools)
        beginnings = Beginnings(b"" if tools == b"null" else tools)
        for message in fields.messages:
            if beginnings.full:
                break
            for text in message.texts():
                beginnings.add(text)
            beginnings.mark()
            beginnings.open(message.role, message.content_texts())
        asked = next((one for one in reversed(fields.messages) if one.role == "user"), None)
        beginnings.ask(() if asked is None else asked.content_texts())
        return beginnings

    def safety_identifier(self, fields: _ChatFields) -> str:
        """See `OpenAIOperation`."""
        return fields.safety_identifier or ""

    def tools(self, fields: _ChatFields) -> msgspec.Raw:
        """See `OpenAIOperation`."""
        return fields.tools

    def logprobs(self, fields: _ChatFields) -> int:
        """The token itself and `top_logprobs` others; with `echo` those of the prompt."""
        if fields.logprobs is NULL and not fields.echo:
            return 0
        wanted = bytes(fields.logprobs).strip() not in (b"null", b"false")
        return 1 + top_of(fields.top_logprobs) if wanted or fields.echo else 0

    def opening(self) -> dict[str, Any]:
        """The role."""
        return {"delta": {"role": "assistant", "content": ""}}

    def delta(self, text: str) -> dict[str, Any]:
        """A delta of the message's content."""
        return {"delta": {"content": text}}

    def end(self) -> dict[str, Any]:
        """An empty delta."""
        return {"delta": {}}

    def choice(self, text: str) -> dict[str, Any]:
        """The message."""
        return {"message": MESSAGE | {"content": text}}

    def conform(self, choice: dict[str, Any]) -> None:
        """See `Operation`. A message always has the fields of MESSAGE, and others only if they are
        not empty. vLLM gives it the last message's role if that is not followed by the beginning of
        an answer (`add_generation_prompt`)."""
        super().conform(choice)
        if (logprobs := choice["logprobs"]) is not None:
            logprobs.setdefault("refusal", None)
        if (message := choice.get("message")) is not None:
            choice["message"] = MESSAGE | _nonempty_fields(message) | _ROLE
        if (delta := choice.get("delta")) is not None:
            fields = _nonempty_fields(delta)
            choice["delta"] = fields | _ROLE if "role" in fields else fields

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """Only text messages, and of the template's arguments only TEMPLATE_SWITCHES."""
        kept = only_allowed(super().allowed(body))
        check_messages(body.get("messages"))
        if kept.get("echo") and isinstance(body["messages"][-1].get("content"), list):
            message = (
                "`echo` needs a last message whose `content` is one text, not a list of parts."
            )
            raise InvalidRequest(message, param="echo")
        offer_tools(kept)
        if switches := template_switches(body.get("chat_template_kwargs")):
            kept["chat_template_kwargs"] = switches
        return kept

    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """The messages joined; the answer repeats the last one."""
        return plain_messages(fields["messages"])


def _nonempty_fields(message: dict[str, Any]) -> dict[str, Any]:
    """Its fields that are neither null nor an empty list."""
    return {name: value for name, value in message.items() if value is not None and value != []}


def check_messages(messages: Any) -> None:
    """Check that these are messages of text.

    Raises:
        InvalidRequest: they aren't.
    """
    if not isinstance(messages, list):
        raise InvalidRequest("`messages` must be an array of messages.", param="messages")
    if not messages:
        raise InvalidRequest("`messages` must have at least one message.", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"`messages[{i}]` must be an object with a `role`.", param=f"messages[{i}]"
            )
        param = f"messages[{i}].content"
        if message.get("content") is None and message["role"] != "assistant":
            raise InvalidRequest(f"`{param}` is missing.", param=param)
        _check_content(message.get("content"), param)


def _check_content(content: Any, param: str) -> None:
    """Check that it is text or a list of text parts: the engine must not fetch the URL of an image
    or audio part."""
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequest(f"`{param}` must be a string or an array of parts.", param=param)
    for i, part in enumerate(content):
        type_ = part.get("type") if isinstance(part, dict) else None
        if type_ not in ("text", "refusal"):
            raise InvalidRequest(
                f"`{param}[{i}]` has the type `{type_}`: only parts of type `text` are "
                "supported, not images or audio.",
                param=param,
            )
        if part.get(type_) is None:
            missing = f"{param}[{i}].{type_}"
            raise InvalidRequest(f"`{missing}` is missing.", param=missing)


def template_switches(given: Any) -> dict[str, bool]:
    """The fields of `chat_template_kwargs` that clients may set."""
    if not isinstance(given, dict):
        return {}
    return {name: given[name] for name in TEMPLATE_SWITCHES if isinstance(given.get(name), bool)}


def plain_messages(messages: list[dict[str, Any]]) -> PlainPrompt:
    """Messages as a prompt without a chat template."""
    texts = [_text(message.get("content")) for message in messages]
    turns = zip([message["role"] for message in messages], texts, strict=True)
    return PlainPrompt("".join(f"<{role}>{text}" for role, text in turns), texts[-1])


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


CHAT = Chat()
