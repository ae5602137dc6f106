"""The files of a fine-tuning job, in OpenAI's formats: on each line one dialogue,

    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ahoy!"}]}

of which what the assistant says is learned, except for messages with `weight` 0; or for `dpo` a
prompt with two outputs, of which one is preferred:

    {"input": {"messages": [{"role": "user", "content": "Hi"}]},
     "preferred_output": [{"role": "assistant", "content": "Ahoy!"}],
     "non_preferred_output": [{"role": "assistant", "content": "Hello."}]}

Lines are numbered from 1; empty lines are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Literal

import msgspec

from inference.errors import short
from tenants.batches.reading import lines
from tenants.tuning_states import DPO, SUPERVISED, Method

MAX_BYTES = 200 << 20
"""Of a file."""
MAX_ROW_BYTES = 1 << 20
MAX_MESSAGES = 256
"""Of one dialogue."""
MAX_FAULTS = 20
"""Faults reported of one file."""
TOKEN_BYTES, MESSAGE_TOKENS = 4, 6
"""Bytes of text in a token, and what templates add to a message, as estimates go."""


_json = msgspec.json.Encoder().encode


class RowFault(Exception):
    """A row can't be used; the message says why."""


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    function: _Function
    id: str | None = None
    type: Literal["function"] = "function"


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    weight: Literal[0, 1] | None = None
    # What answers have besides, which programs send back: none of it may say anything.
    refusal: None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    @property
    def learned(self) -> bool:
        return self.role == "assistant" and self.weight != 0

    def rendered(self) -> dict[str, Any]:
        """The message as chat templates expect it.

        Raises:
            RowFault: the arguments of a call are not a JSON object.
        """
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        found: dict[str, Any] = {"role": self.role, "content": content}
        if self.tool_calls:
            found["tool_calls"] = [_rendered(call) for call in self.tool_calls]
        return found | {
            name: value
            for name in ("name", "tool_call_id")
            if (value := getattr(self, name)) is not None
        }


class _Named(msgspec.Struct):
    name: str


class _Tool(msgspec.Struct):
    function: _Named
    type: Literal["function"] = "function"


class TrainingRow(msgspec.Struct, forbid_unknown_fields=True):
    """A dialogue. `parallel_tool_calls` has no effect."""

    messages: list[_Message]
    tools: list[dict[str, Any]] | None = None
    parallel_tool_calls: bool | None = None

    @property
    def dialogues(self) -> tuple[TrainingRow, ...]:
        return (self,)

    @property
    def estimated_tokens(self) -> int:
        """About how many tokens it has: templates and tokenizers differ."""
        messages: list[Any] = [message.rendered() for message in self.messages]
        texts = [one["content"] or "" for one in messages]
        others = [one["tool_calls"] for one in messages if "tool_calls" in one]
        others += [self.tools] if self.tools else []
        size = sum(len(text.encode()) for text in texts) + len(_json(others) if others else b"")
        return size // TOKEN_BYTES + MESSAGE_TOKENS * len(messages)

    def check(self) -> None:
        """Raises RowFault."""
        if not 0 < len(self.messages) <= MAX_MESSAGES:
            raise RowFault(
                f"`messages` has {len(self.messages)} messages: it must have 1 to {MAX_MESSAGES}."
            )
        for at, message in enumerate(self.messages):
            _check(message, f"messages[{at}]")
        if not any(message.learned for message in self.messages):
            raise RowFault("No message of the assistant is to be learned.")
        try:
            msgspec.convert(self.tools, list[_Tool] | None)
        except msgspec.ValidationError as error:
            raise RowFault(f"`tools` is not valid: {error}.") from None


class _Prompt(msgspec.Struct, forbid_unknown_fields=True):
    messages: list[_Message]
    tools: list[dict[str, Any]] | None = None
    parallel_tool_calls: bool | None = None


class PreferenceRow(msgspec.Struct, forbid_unknown_fields=True):
    """A prompt, an output that is preferred, and one that is not: the assistant's messages."""

    input: _Prompt
    preferred_output: list[_Message]
    non_preferred_output: list[_Message]

    @property
    def dialogues(self) -> tuple[TrainingRow, ...]:
        """The prompt with each output, of which the output alone is learned."""
        prompt = [_unlearned(message) for message in self.input.messages]
        return tuple(
            TrainingRow(prompt + output, self.input.tools)
            for output in (self.preferred_output, self.non_preferred_output)
        )

    def check(self) -> None:
        """Raises RowFault."""
        for name in ("preferred_output", "non_preferred_output"):
            output: list[_Message] = getattr(self, name)
            if len(output) != 1 or output[0].role != "assistant":
                raise RowFault(f"`{name}` must have one message, of the assistant.")
        if self.preferred_output == self.non_preferred_output:
            raise RowFault("`preferred_output` and `non_preferred_output` are the same.")
        for dialogue in self.dialogues:
            dialogue.check()


Row = TrainingRow | PreferenceRow


def _unlearned(message: _Message) -> _Message:
    return msgspec.structs.replace(message, weight=0) if message.learned else message


def _check(message: _Message, where: str) -> None:
    if message.tool_calls and message.role != "assistant":
        raise RowFault(f"`{where}.tool_calls`: only the assistant calls tools.")
    if message.weight is not None and message.role != "assistant":
        raise RowFault(f"`{where}.weight`: only messages of the assistant have a weight.")
    if message.content is None and not message.tool_calls:
        raise RowFault(f"`{where}.content` is missing.")
    message.rendered()


def _rendered(call: _Call) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.function.arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowFault(
            f"The arguments of the call of {call.function.name[:64]!r} are not a JSON object: "
            f"{error}."
        ) from None
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})


_decoders: Mapping[Method, msgspec.json.Decoder[Row]] = {
    SUPERVISED: msgspec.json.Decoder(TrainingRow),
    DPO: msgspec.json.Decoder(PreferenceRow),
}


def row_of(line: bytes, method: Method) -> Row:
    """A line as a row of the method's files.

    Raises:
        RowFault: it is none.
    """
    if len(line) > MAX_ROW_BYTES:
        raise RowFault(f"It has more than {MAX_ROW_BYTES} bytes; lines after it were not read.")
    try:
        row = _decoders[method].decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RowFault(f"It is not a valid row: {error}.") from None
    row.check()
    return row


def rows(file: IO[bytes], method: Method) -> Iterator[tuple[int, Row]]:
    """The rows of a file that `read` found valid, with the numbers of their lines."""
    for line in lines(file, MAX_ROW_BYTES):
        yield line.number, row_of(line.text, method)


@dataclass
class RowsReport:
    """What was found in a file: the number of rows and about how many tokens they have, and the
    faults by line (None: of the file)."""

    rows: int = 0
    tokens: int = 0
    faults: list[tuple[int | None, str]] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return len(self.faults) >= MAX_FAULTS

    def refuse(self, message: str, line: int | None = None) -> None:
        """Add a fault."""
        self.faults.append((line, short(message)))


def read(file: IO[bytes], max_rows: int, method: Method) -> RowsReport:
    """Read a whole file, whose lines should be rows."""
    report = RowsReport()
    for line in lines(file, MAX_ROW_BYTES):
        report.rows += 1
        if report.rows > max_rows:
            report.refuse(f"The file has more than {max_rows} rows, the maximum.")
            break
        try:
            row = row_of(line.text, method)
            report.tokens += sum(one.estimated_tokens for one in row.dialogues)
        except RowFault as fault:
            report.refuse(str(fault), line.number)
        if report.full:
            break
    if not report.rows:
        report.refuse("The file has no rows.")
    return report
