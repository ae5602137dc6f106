"""`POST /v1/responses`: OpenAI's newer API, with items instead of messages.

A request is a chat in another notation and is converted to one here. So engines, grammars, parsers
of tool calls and thoughts, and moves between engines are those of chats, and the answer is framed
here (`framing`). vLLM's own endpoint (`OpenAIServingResponses`) is not used: it makes random ids
for items and numbers events as it goes, so an answer that moves to another engine would start over
in the middle; it ends a truncated stream as completed; and it keeps answers in the engine, for any
client that names them. Chats do everything else.

Storing responses, continuing from earlier ones and running them in the background is done by the
gateway (`gateway.stored.responses`, `gateway.lines.background`); the answer says `store: false`
unless the gateway stores it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from inference.errors import InvalidRequest
from inference.link.workload import Workload
from inference.operations.bodies.beginnings import Beginnings
from inference.operations.bodies.constraints import (
    NAMESPACE,
    ToolField,
    check_function_tools,
    check_schema,
    check_structured_outputs,
    flat_name,
)
from inference.operations.bodies.fields import OF_VLLM, SAMPLING, check_fields
from inference.operations.bodies.reading import convert, decode, decode_part, require_model
from inference.operations.chat import CHAT, plain_messages, template_switches
from inference.operations.openai import NULL, SampledBody
from inference.operations.operation import Call, Operation, PlainPrompt
from inference.operations.responses.call import ResponseCall
from inference.operations.responses.framing import ResponsesFraming
from inference.operations.responses.items import (
    REFERENCE,
    Input,
    ResponseItem,
    as_messages,
    check_input,
    read_input,
)

LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for log-probabilities."""

UNSERVED: Mapping[str, tuple[Any, str]] = {
    "access_programs": (None, "the server has no access programs"),
    "context_management": (None, "the server does not edit the input"),
    "image": (None, "images are not supported"),
    "moderation": (None, "use a model to classify the text"),
    "prompt": (None, "send the prompt as `instructions` and `input`"),
}
"""See `fields.UNSERVED`."""

SAMPLED = SAMPLING - {"logprobs", "max_tokens", "n", "response_format"}
"""Fields that have the same name in a chat."""


class _Format(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, msgspec.Raw] | None = None
    description: str | None = None
    strict: bool | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None
    verbosity: str | None = None


class _Reasoning(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class _Allowed(msgspec.Struct):
    type: Literal["function"]
    name: str


class _Choice(msgspec.Struct):
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

    def told(self) -> dict[str, Any]:
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
_ToolChoice = Literal["none", "auto", "required"] | _Choice | None
_Truncation = Literal["auto", "disabled"]
_ConversationId = Annotated[str, msgspec.Meta(max_length=64)]
_Key = Annotated[str, msgspec.Meta(max_length=64)]
_Value = Annotated[str, msgspec.Meta(max_length=512)]
Metadata = Annotated[dict[_Key, _Value], msgspec.Meta(max_length=16)]
_text = msgspec.json.Decoder(_Text | None)
_tool_choice = msgspec.json.Decoder(_ToolChoice)


class _Conversation(msgspec.Struct):
    """The conversation that a response continues and is added to."""

    id: _ConversationId


class ResponsesFields(SampledBody, kw_only=True):
    """The fields that the gateway reads of a request."""

    input: Input
    background: bool | None = None
    conversation: _ConversationId | _Conversation | None = None
    include: list[_Include] | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_tool_calls: int | None = None
    metadata: Metadata | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: _Reasoning | None = None
    safety_identifier: Annotated[str, msgspec.Meta(max_length=128)] | None = None
    store: bool | None = None
    text: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    tools: msgspec.Raw = NULL
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    truncation: _Truncation | None = None


class ResponsesOperation(Operation):
    """The items of the next answer in a conversation."""

    name = "responses"
    path = "/v1/responses"
    id_prefix = "resp"
    in_batches = True
    accepted = SAMPLED | {
        "include",
        "input",
        "instructions",
        "max_output_tokens",
        "parallel_tool_calls",
        "reasoning",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "truncation",
    }
    decoder = msgspec.json.Decoder(ResponsesFields)

    def parse(self, body: bytes) -> ResponseCall:
        """See `Operation`."""
        fields: ResponsesFields = decode(self.decoder, body)
        require_model(fields.model)
        check_input(fields.input, references=True)
        check_structured_outputs(fields.structured_outputs)
        _check_background(fields)
        _check_conversation(fields)
        conversation = fields.conversation
        text, (choice, tools) = _read_text(fields.text), _read_tools(fields)
        wants_logprobs = LOGPROBS in (fields.include or ())
        return ResponseCall(
            operation=self,
            model=fields.model,
            stream=bool(fields.stream),
            workload=Workload(
                max_tokens=fields.max_output_tokens,
                logprobs=1 + (fields.top_logprobs or 0) if wants_logprobs else 0,
            ),
            flex=fields.service_tier == "flex",
            parsers=("tool",) if tools and choice != "none" else (),
            body=body,
            beginnings=_beginnings(fields),
            echoed=_echoed(fields, text, choice, tools),
            namespaces={flat_name(*at): at for at in tools if at[0]},
            store=fields.store is not False,
            background=bool(fields.background),
            conversation=conversation.id
            if isinstance(conversation, _Conversation)
            else conversation or "",
            previous_response_id=fields.previous_response_id or "",
            references=not isinstance(fields.input, str)
            and any(
                item.kind == REFERENCE for item in fields.input if isinstance(item, ResponseItem)
            ),
        )

    def framing(self, call: Call, id: str, created: int, revision: str = "") -> ResponsesFraming:
        """See `Operation`."""
        assert isinstance(call, ResponseCall), "made by `parse`"
        return ResponsesFraming(
            self.answer_id(id), id, call.model, created, call.echoed, call.namespaces
        )

    def answer_id(self, request_id: str) -> str:
        """See `Operation`. Clients recognise responses by the prefix of their ids."""
        return f"{self.id_prefix}_{request_id}"

    def read(self, body: bytes, max_tokens: int | None) -> dict[str, Any]:
        """See `Operation`."""
        fields = super().read(body, None)
        return fields if max_tokens is None else fields | {"max_output_tokens": max_tokens}

    def max_tokens(self, body: dict[str, Any]) -> int | None:
        """See `Operation`; takes a body, or the chat that `allowed` converts it to."""
        if "input" not in body:
            return CHAT.max_tokens(body)
        wanted = body.get("max_output_tokens")
        return max(0, wanted) if isinstance(wanted, int) else None

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Operation`. Returns the body as a chat, with `truncation` if the beginning of the
        input may be dropped."""
        check_fields(body, UNSERVED)
        check_fields(body, OF_VLLM)
        kept = {name: body[name] for name in self.accepted & body.keys()}
        chat = {name: kept[name] for name in SAMPLED & kept.keys()} | _as_chat(kept)
        if switches := template_switches(body.get("chat_template_kwargs")):
            chat["chat_template_kwargs"] = switches
        shortened = kept.get("truncation") == "auto"
        return CHAT.allowed(chat) | ({"truncation": "auto"} if shortened else {})

    def conform(self, choice: dict[str, Any]) -> None:
        """As for a chat."""
        CHAT.conform(choice)

    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """As for a chat."""
        return plain_messages(fields["messages"])


def _check_background(fields: ResponsesFields) -> None:
    """Check that it can run in the background, if it asks for that.

    Raises:
        InvalidRequest: it can't.
    """
    if fields.background and fields.store is False:
        said = (
            "`store` must not be false with `background`, because a background response is stored."
        )
        raise InvalidRequest(said, param="store")
    if fields.background and fields.stream:
        said = "`stream` is not supported with `background`: retrieve the response by its id."
        raise InvalidRequest(said, param="stream")


def _check_conversation(fields: ResponsesFields) -> None:
    """Check that no field conflicts with `conversation`.

    Raises:
        InvalidRequest: one does.
    """
    if fields.conversation is None:
        return
    if fields.previous_response_id is not None:
        said = (
            "`conversation` and `previous_response_id` exclude each other: send only one of them."
        )
        raise InvalidRequest(said, param="previous_response_id")
    if fields.store is False:
        said = "`store` must not be false with `conversation`, because a conversation is stored."
        raise InvalidRequest(said, param="store")
    if fields.background:
        said = "`conversation` is not supported with `background`: use `previous_response_id`."
        raise InvalidRequest(said, param="conversation")


def _read_text(raw: msgspec.Raw) -> _Text:
    """Read `text`, whose schema must be within the bounds of `constraints`.

    Raises:
        InvalidRequest: it is wrong or too large.
    """
    check_schema(raw, "text")
    text: _Text = decode_part(_text, raw, "text") or _Text()
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


def _read_tools(
    fields: ResponsesFields,
) -> tuple[str | _Choice, dict[tuple[str, str], ToolField]]:
    """`tool_choice`, and the functions among `tools` by namespace and name.

    Raises:
        InvalidRequest: one of them is wrong.
    """
    choice: str | _Choice = decode_part(_tool_choice, fields.tool_choice, "tool_choice") or "auto"
    named = choice if isinstance(choice, _Choice) else None
    must_use = named.must_use if named else choice == "required"
    tools = check_function_tools(fields.tools, must_use=must_use)
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


def _beginnings(fields: ResponsesFields) -> Beginnings:
    """A beginning ends with each item; all include the tools and instructions."""
    tools = bytes(fields.tools)
    beginnings = Beginnings(b"" if tools == b"null" else tools)
    beginnings.add(fields.instructions or "")
    beginnings.mark()
    if isinstance(fields.input, str):
        beginnings.add(fields.input)
        beginnings.mark()
        return beginnings
    for item in fields.input:
        if beginnings.full:
            break
        for text in item.texts():
            beginnings.add(text)
        beginnings.mark()
    return beginnings


def _echoed(
    fields: ResponsesFields,
    text: _Text,
    choice: str | _Choice,
    tools: Mapping[tuple[str, str], ToolField],
) -> dict[str, Any]:
    """The fields that the answer repeats. Missing ones are shown with OpenAI's defaults, even if
    the model's own differ."""
    reasoning = fields.reasoning or _Reasoning()
    shown: dict[str, Any] = {"format": _shown_format(text.format)}
    if text.verbosity is not None:
        shown["verbosity"] = text.verbosity
    return {
        "frequency_penalty": _or(fields.frequency_penalty, 0.0),
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata or {},
        "parallel_tool_calls": _or(fields.parallel_tool_calls, True),
        "presence_penalty": _or(fields.presence_penalty, 0.0),
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": fields.safety_identifier,
        "service_tier": "flex" if fields.service_tier == "flex" else "default",
        "temperature": _or(fields.temperature, 1.0),
        "text": shown,
        "tool_choice": choice.told() if isinstance(choice, _Choice) else choice,
        "tools": [_shown_tool(flat_name(*at), tool) for at, tool in tools.items()],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": _or(fields.top_p, 1.0),
        "truncation": fields.truncation or "disabled",
    }


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _shown_format(format: _Format | None) -> dict[str, Any]:
    if format is None or format.type != "json_schema":
        return {"type": "text" if format is None else format.type}
    return {
        "type": format.type,
        "name": format.name,
        "description": format.description,
        "schema": _kept(format.schema),
        "strict": bool(format.strict),
    }


def _shown_tool(name: str, tool: ToolField) -> dict[str, Any]:
    return {
        "type": tool.type,
        "name": name,
        "description": tool.description,
        "parameters": _kept(tool.parameters),
        "strict": tool.strict,
    }


def _kept(schema: dict[str, msgspec.Raw] | None) -> dict[str, msgspec.Raw] | None:
    """A copy of the schema that does not refer to the body: a raw part keeps all of it alive."""
    return None if schema is None else {name: part.copy() for name, part in schema.items()}


# --- the chat that it is -------------------------------------------------------------------------


def _as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The chat fields whose names or notation differ from this API's.

    Raises:
        InvalidRequest: one of them is wrong.
    """
    instructions = convert(body.get("instructions"), str | None, "instructions")
    if body.get("input") is None:
        raise InvalidRequest("You must provide an input parameter.", param="input")
    reasoning = convert(body.get("reasoning"), _Reasoning | None, "reasoning")
    chat: dict[str, Any] = {
        "messages": as_messages(instructions, read_input(body["input"])),
        "max_completion_tokens": body.get("max_output_tokens"),
        "reasoning_effort": reasoning.effort if reasoning else None,
        "response_format": _response_format((body.get("text") or {}).get("format")),
    }
    if LOGPROBS in (body.get("include") or ()):
        chat |= {"logprobs": True, "top_logprobs": body.get("top_logprobs")}
    if tools := body.get("tools"):
        choice: _ToolChoice = convert(body.get("tool_choice"), _ToolChoice, "tool_choice")
        chat |= {
            "tools": [*_functions(tools)],
            "tool_choice": choice.of_chat() if isinstance(choice, _Choice) else choice,
            "parallel_tool_calls": body.get("parallel_tool_calls"),
        }
    return chat


def _response_format(format: dict[str, Any] | None) -> dict[str, Any] | None:
    if not format or format["type"] == "text":
        return None
    rest = {name: value for name, value in format.items() if name != "type" and value is not None}
    return {"type": format["type"], format["type"]: rest} if rest else {"type": format["type"]}


def _functions(tools: list[dict[str, Any]], namespace: str = "") -> Iterator[dict[str, Any]]:
    """A chat's tools. What is neither a function nor a namespace is left out."""
    for tool in tools:
        if tool["type"] == NAMESPACE:
            yield from _functions(tool["tools"], tool["name"])
        elif tool["type"] == "function":
            yield _tool(tool | {"name": flat_name(namespace, tool["name"])})


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


RESPONSES = ResponsesOperation()
