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
from typing import Any

import msgspec

from inference.errors import InvalidRequest
from inference.link.workload import Workload
from inference.operations.bodies.beginnings import Beginnings
from inference.operations.bodies.constraints import (
    NAMESPACE,
    ToolField,
    check_structured_outputs,
    flat_name,
)
from inference.operations.bodies.fields import OF_VLLM, SAMPLING, check_fields
from inference.operations.bodies.reading import convert, decode, require_model
from inference.operations.chat import CHAT, plain_messages, template_switches
from inference.operations.operation import Call, Operation, PlainPrompt
from inference.operations.responses.call import ResponseCall
from inference.operations.responses.fields import (
    ChosenTools,
    FormatField,
    GivenChoice,
    ReasoningField,
    ResponsesFields,
    TextField,
    check_background,
    check_conversation,
    id_of,
    read_text,
    read_tools,
)
from inference.operations.responses.framing import ResponsesFraming
from inference.operations.responses.items import (
    as_messages,
    check_input,
    content_texts,
    read_input,
    refers,
)
from inference.operations.structure import AskedStructure

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
        check_background(fields)
        check_conversation(fields)
        text, (choice, tools) = read_text(fields.text), read_tools(fields.tools, fields.tool_choice)
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
            user=fields.user or "",
            safety_identifier=fields.safety_identifier or "",
            structure=AskedStructure.of(fields.text, fields.structured_outputs, fields.tools),
            echoed=_echoed(fields, text, choice, tools),
            namespaces={flat_name(*at): at for at in tools if at[0]},
            store=fields.store is not False,
            background=bool(fields.background),
            conversation=id_of(fields.conversation),
            previous_response_id=fields.previous_response_id or "",
            references=refers(fields.input),
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


def _beginnings(fields: ResponsesFields) -> Beginnings:
    """A beginning ends with each item; all include the tools and instructions."""
    tools = bytes(fields.tools)
    beginnings = Beginnings(b"" if tools == b"null" else tools)
    beginnings.add(fields.instructions or "")
    beginnings.mark()
    if isinstance(fields.input, str):
        beginnings.add(fields.input)
        beginnings.mark()
        beginnings.open("user", [fields.input])
        beginnings.ask([fields.input])
        return beginnings
    for item in fields.input:
        if beginnings.full:
            break
        for text in item.texts():
            beginnings.add(text)
        beginnings.mark()
        beginnings.open(item.role, content_texts(item.content))
    asked = next((item for item in reversed(fields.input) if item.role == "user"), None)
    beginnings.ask(() if asked is None else content_texts(asked.content))
    return beginnings


def _echoed(
    fields: ResponsesFields,
    text: TextField,
    choice: str | ChosenTools,
    tools: Mapping[tuple[str, str], ToolField],
) -> dict[str, Any]:
    """The fields that the answer repeats. Missing ones are shown with OpenAI's defaults, even if
    the model's own differ."""
    reasoning = fields.reasoning or ReasoningField()
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
        "tool_choice": choice.as_field() if isinstance(choice, ChosenTools) else choice,
        "tools": [_shown_tool(flat_name(*at), tool) for at, tool in tools.items()],
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": _or(fields.top_p, 1.0),
        "truncation": fields.truncation or "disabled",
    }


def _or(given: Any, default: Any) -> Any:
    return default if given is None else given


def _shown_format(format: FormatField | None) -> dict[str, Any]:
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
    reasoning = convert(body.get("reasoning"), ReasoningField | None, "reasoning")
    chat: dict[str, Any] = {
        "messages": as_messages(instructions, read_input(body["input"])),
        "max_completion_tokens": body.get("max_output_tokens"),
        "reasoning_effort": reasoning.effort if reasoning else None,
        "response_format": _response_format((body.get("text") or {}).get("format")),
    }
    if LOGPROBS in (body.get("include") or ()):
        chat |= {"logprobs": True, "top_logprobs": body.get("top_logprobs")}
    if tools := body.get("tools"):
        choice: GivenChoice = convert(body.get("tool_choice"), GivenChoice, "tool_choice")
        chat |= {
            "tools": [*_functions(tools)],
            "tool_choice": choice.of_chat() if isinstance(choice, ChosenTools) else choice,
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
