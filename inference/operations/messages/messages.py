"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API.

A request is a chat in another notation. The engine's agent reads it with vLLM's own models of it
and generates as for a chat; the answer is framed here (`framing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from inference.errors import ContextLengthExceeded, InvalidRequest
from inference.link.workload import NO_OUTPUT, Workload
from inference.operations.bodies.beginnings import Beginnings
from inference.operations.bodies.constraints import check_client_tools, check_schema
from inference.operations.bodies.fields import check_fields
from inference.operations.bodies.ranges import Positive, Share, Temperature, TopK
from inference.operations.bodies.reading import decode, decode_part, require_model
from inference.operations.chat import CHAT
from inference.operations.error_shapes import ANTHROPIC
from inference.operations.instant import InstantOperation, PlainTokenizer, check_text
from inference.operations.messages.framing import MessagesFraming
from inference.operations.openai import NULL
from inference.operations.operation import Call, Framing, Operation, PlainPrompt
from inference.operations.structure import AskedStructure

SERVED = {
    "text": ("text",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
}
"""Types of content blocks that are supported, with the fields that each must have."""

UNSERVED: Mapping[str, tuple[Any, str]] = {
    "container": (None, "there is no code execution on the server"),
    "diagnostics": (None, "the server returns no diagnostics"),
    "inference_geo": (None, "the operator decides where engines run"),
    "mcp_servers": (None, "the client must call tools itself"),
    "output_format": (None, "use `output_config`"),
    "speed": ("standard", "all requests have the same speed"),
}
"""See `fields.UNSERVED`."""


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    thinking: str | None = None
    name: str | None = None
    input: msgspec.Raw = NULL
    content: str | list[msgspec.Raw] | None = None

    def texts(self) -> Iterator[str]:
        yield from (part for part in (self.text, self.thinking, self.name) if part)
        if self.type == "tool_use":
            yield bytes(self.input).decode()
        if isinstance(self.content, str):
            yield self.content
        else:
            yield from (bytes(part).decode() for part in self.content or ())


class _Turn(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]

    def texts(self) -> Iterator[str]:
        """The texts of it that a template may use."""
        yield self.role
        yield from _texts(self.content)

    def question(self) -> list[str]:
        """The user's own texts in it: none in one that only has the results of tools."""
        if isinstance(self.content, str):
            return [self.content]
        return [block.text for block in self.content if block.type == "text" and block.text]


class _ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class _Edit(msgspec.Struct):
    type: str
    keep: msgspec.Raw = NULL

    @property
    def changes_nothing(self) -> bool:
        return self.type.startswith("clear_thinking_") and bytes(self.keep) == b'"all"'


class _ContextManagement(msgspec.Struct):
    edits: list[_Edit] = []


class CountFields(msgspec.Struct):
    """The fields that the gateway reads of any request of this API."""

    model: str
    messages: list[_Turn]
    system: str | list[_Block] | None = None
    tools: msgspec.Raw = NULL
    tool_choice: msgspec.Raw = NULL
    thinking: msgspec.Raw = NULL
    output_config: msgspec.Raw = NULL
    context_management: _ContextManagement | None = None


class MessagesFields(CountFields, kw_only=True):
    """The fields that it also reads if the request generates."""

    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: Share | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    metadata: dict[str, str | None] | None = None


READ = frozenset({"messages", "output_config", "system", "thinking", "tool_choice", "tools"})
"""The fields that an engine may see of any request of this API."""

_tool_choice = msgspec.json.Decoder(_ToolChoice | None)


@dataclass(slots=True, kw_only=True)
class MessagesCall(Call):
    """`reports_edits`: the answer says that the conversation was not edited."""

    reports_edits: bool = False


class Messages(Operation):
    """The assistant's next turn in a conversation."""

    name = "messages"
    path = "/v1/messages"
    id_prefix = "msg"
    accepted = READ | {"max_tokens", "stop_sequences", "stream", "temperature", "top_k", "top_p"}
    errors = ANTHROPIC
    in_batches = True
    decoder = msgspec.json.Decoder(MessagesFields)

    def parse(self, body: bytes) -> Call:
        """See `Operation`."""
        fields: MessagesFields = decode(self.decoder, body)
        uses_tools = _check(fields)
        return MessagesCall(
            operation=self,
            model=fields.model,
            stream=bool(fields.stream),
            workload=Workload(max_tokens=fields.max_tokens),
            parsers=("tool",) if uses_tools else (),
            body=body,
            beginnings=_beginnings(fields),
            user=(fields.metadata or {}).get("user_id") or "",
            structure=AskedStructure.of(fields.output_config, b"", fields.tools),
            reports_edits=fields.context_management is not None,
        )

    def framing(self, call: Call, id: str, created: int, revision: str = "") -> Framing:
        """See `Operation`."""
        assert isinstance(call, MessagesCall), "made by `parse`"
        return MessagesFraming(self.answer_id(id), call.model, reports_edits=call.reports_edits)

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Operation`. Content may be text and tools."""
        kept = _allowed(super().allowed(body), body)
        if kept.get("top_p") == 0:  # the likeliest token alone, which vLLM calls `top_k` 1
            del kept["top_p"]
            kept["top_k"] = 1
        return kept

    def conform(self, choice: dict[str, Any]) -> None:
        """As for a chat, but keeps the stop sequence that ended it, which this API reports."""
        stop = choice.get("stop_reason")
        CHAT.conform(choice)
        if isinstance(stop, str):
            choice["stop_reason"] = stop

    def reworded(self, error: BaseException) -> BaseException:
        """See `Operation`. These words of Anthropic's make agents shorten a conversation."""
        if isinstance(error, ContextLengthExceeded) and error.limit:
            return ContextLengthExceeded(
                f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
            )
        return error

    def plain_prompt(self, fields: dict[str, Any]) -> PlainPrompt:
        """The turns joined; the answer repeats the last one."""
        texts = ["".join(_plain_texts(turn["content"])) for turn in fields["messages"]]
        roles = ["system", *(turn["role"] for turn in fields["messages"])]
        parts = zip(roles, ["".join(_plain_texts(fields.get("system"))), *texts], strict=True)
        return PlainPrompt("".join(f"<{role}>{text}" for role, text in parts if text), texts[-1])


class CountTokens(InstantOperation):
    """Counts the prompt tokens of a request of `Messages`."""

    name = "count_tokens"
    path = "/v1/messages/count_tokens"
    accepted = READ
    errors = ANTHROPIC
    decoder = msgspec.json.Decoder(CountFields)

    def parse(self, body: bytes) -> Call:
        """See `Operation`."""
        fields: CountFields = decode(self.decoder, body)
        _check(fields)
        turns = sum(len(text) for turn in fields.messages for text in turn.texts())
        check_text(turns + sum(map(len, _texts(fields.system))), "messages")
        return Call(self, fields.model, workload=NO_OUTPUT, body=body)

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Operation`."""
        return _allowed(super().allowed(body), body)

    def plain_answer(self, fields: dict[str, Any], tokenizer: PlainTokenizer) -> dict[str, Any]:
        """See `Operation`."""
        return {"input_tokens": len(tokenizer.encode(MESSAGES.plain_prompt(fields).whole))}


def _check(fields: CountFields) -> bool:
    """Check what engines would find too late; returns whether tools may be called.

    Raises:
        InvalidRequest: something is wrong.
    """
    require_model(fields.model)
    if not fields.messages:
        raise InvalidRequest("`messages` must have at least one message.", param="messages")
    choice: _ToolChoice | None = decode_part(_tool_choice, fields.tool_choice, "tool_choice")
    must_use = choice is not None and choice.type in ("any", "tool")
    names = check_client_tools(fields.tools, must_use=must_use)
    if must_use and not names:
        raise InvalidRequest("`tool_choice` requires a tool: send `tools`.", param="tools")
    if choice is not None and choice.type == "tool" and choice.name not in names:
        raise InvalidRequest(
            f"`tool_choice.name` is `{choice.name}`, which is not in `tools`.",
            param="tool_choice.name",
        )
    check_schema(fields.output_config, "output_config")
    managed = fields.context_management
    if managed is not None and not all(edit.changes_nothing for edit in managed.edits):
        raise InvalidRequest(
            "`context_management.edits` has an edit that may change the conversation, which the "
            "server does not do.",
            param="context_management.edits",
        )
    return bool(names) and (choice is None or choice.type != "none")


def _beginnings(fields: CountFields) -> Beginnings:
    """A beginning ends with each turn; all include the tools and the system text."""
    beginnings = Beginnings(b"" if bytes(fields.tools) == b"null" else bytes(fields.tools))
    for text in _texts(fields.system):
        beginnings.add(text)
    beginnings.mark()
    for turn in fields.messages:
        if beginnings.full:
            break
        for text in turn.texts():
            beginnings.add(text)
        beginnings.mark()
        beginnings.open(turn.role, _texts(turn.content))
    turns = [turn for turn in reversed(fields.messages) if turn.role == "user"]
    beginnings.ask(next((question for turn in turns if (question := turn.question())), ()))
    return beginnings


def _texts(content: str | list[_Block] | None) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    else:
        for block in content or ():
            yield from block.texts()


def _allowed(fields: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """The fields without those that are null.

    Raises:
        InvalidRequest: the body asks for what no engine does, or has content that is not supported.
    """
    check_fields(body, UNSERVED)
    turns = fields.get("messages")
    if not isinstance(turns, list) or not turns:
        raise InvalidRequest("`messages` must have at least one message.", param="messages")
    for i, turn in enumerate(turns):
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            param = f"messages[{i}]"
            raise InvalidRequest(f"`{param}` must be an object with a `role`.", param=param)
        _check_content(turn.get("content"), f"messages[{i}].content")
    if fields.get("system") is not None:
        _check_content(fields["system"], "system", served=("text",))
    return {name: value for name, value in fields.items() if value is not None}


def _check_content(content: Any, param: str, served: Any = tuple(SERVED)) -> None:
    """Check that it is text, or blocks of text and tools: the engine must not fetch an image's URL.

    Raises:
        InvalidRequest: it is something else.
    """
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise InvalidRequest(f"`{param}` must be a string or an array of blocks.", param=param)
    for i, block in enumerate(content):
        at = f"{param}[{i}]"
        type_: Any = block.get("type") if isinstance(block, dict) else None
        if type_ not in served:
            raise InvalidRequest(
                f"`{at}` has the type `{type_}`: supported are "
                f"{', '.join(f'`{one}`' for one in served)}, not images or documents.",
                param=at,
            )
        for name in SERVED[type_]:
            if block.get(name) is None:
                raise InvalidRequest(f"`{at}.{name}` is missing.", param=f"{at}.{name}")
        if type_ == "tool_result" and block.get("content") is not None:
            _check_content(block["content"], f"{at}.content", served=("text",))


def _plain_texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for block in content:
            yield str(block.get("text") or "")
            yield from _plain_texts(block.get("content"))


MESSAGES, COUNT_TOKENS = Messages(), CountTokens()
