"""Where the rows and the answers of an eval's runs come from, as in OpenAI's API. Free of Django,
because a child process reads the rows.
"""

from __future__ import annotations

from typing import Any

import msgspec

from inference.errors import InvalidRequest
from tenants.evals import templates
from tenants.evals.criteria import EvalMessage, check_schema

ENDPOINT = "/v1/chat/completions"
MAX_MESSAGES = 256


class CustomConfig(msgspec.Struct, tag_field="type", tag="custom", forbid_unknown_fields=True):
    """Rows come with each run. With `include_sample_schema`, answers are graded; this is only kept,
    because a criterion that names `sample` says so itself."""

    item_schema: dict[str, Any]
    include_sample_schema: bool = False


class _Elsewhere(msgspec.Struct, tag_field="type"):
    """Not offered: rows come from what was asked and answered earlier."""


class Logs(_Elsewhere, tag="logs"): ...


class EarlierCompletions(_Elsewhere, tag="stored_completions"): ...


class EarlierResponses(_Elsewhere, tag="responses"): ...


Config = CustomConfig | Logs | EarlierCompletions


class EvalRow(msgspec.Struct, omit_defaults=True):
    """One row; an answer that is given with it is its sample."""

    item: dict[str, Any]
    sample: dict[str, Any] | None = None


class RowsInside(msgspec.Struct, tag_field="type", tag="file_content", forbid_unknown_fields=True):
    """Rows in the request."""

    content: list[EvalRow]


class RowsOfFile(msgspec.Struct, tag_field="type", tag="file_id", forbid_unknown_fields=True):
    """A file of rows, one on each line, with the purpose `evals`."""

    id: str


Source = RowsInside | RowsOfFile | EarlierCompletions | EarlierResponses


class MessageTemplates(
    msgspec.Struct, tag_field="type", tag="template", forbid_unknown_fields=True
):
    template: list[EvalMessage]


class MessagesOfRow(
    msgspec.Struct, tag_field="type", tag="item_reference", forbid_unknown_fields=True
):
    """Messages that are a value of the row, such as `item.messages`."""

    item_reference: str


class EvalSampling(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How a model is asked for its answers."""

    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    seed: int | None = None
    temperature: float | None = None
    tools: list[dict[str, Any]] | None = None
    top_p: float | None = None


class GivenAnswers(msgspec.Struct, tag_field="type", tag="jsonl", forbid_unknown_fields=True):
    """Rows whose answers are in them, if they have any."""

    source: Source


class AskedModel(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, kw_only=True):
    """Rows that a model answers."""

    source: Source
    model: str
    input_messages: MessageTemplates | MessagesOfRow

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields of a chat completion that say how the model is asked."""
        return {}

    def messages(self, row: EvalRow) -> list[dict[str, Any]]:
        """The messages for the model.

        Raises:
            TemplateFault: the row lacks a value, or its messages are no messages.
        """
        values, asked = {"item": row.item}, self.input_messages
        if isinstance(asked, MessageTemplates):
            return filled_messages(asked.template, values)
        found = templates.looked_up(asked.item_reference, values)
        if not (isinstance(found, list) and found and all(isinstance(one, dict) for one in found)):
            raise templates.TemplateFault(f"`{asked.item_reference[:80]}` is no list of messages.")
        return found

    def body(self, row: EvalRow, *, logprobs: bool) -> dict[str, Any]:
        """The request for the answer to a row. Raises TemplateFault."""
        asked = {"model": self.model, "messages": self.messages(row), **self.sampling}
        return asked | {"logprobs": True} if logprobs else asked


class Completions(AskedModel, tag="completions", kw_only=True):
    """Asked by `/v1/chat/completions`."""

    sampling_params: EvalSampling | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self.sampling_params or EvalSampling()))


class EvalTextFormat(msgspec.Struct, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None


class ResponsesSampling(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How a model is asked, in the fields of `/v1/responses`."""

    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    seed: int | None = None
    temperature: float | None = None
    text: EvalTextFormat | None = None
    tools: list[dict[str, Any]] | None = None
    top_p: float | None = None


class ResponsesRun(AskedModel, tag="responses", kw_only=True):
    """In the fields of `/v1/responses`. The answers are texts all the same, so that this too is
    asked by `/v1/chat/completions`."""

    sampling_params: ResponsesSampling | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self.sampling_params or ResponsesSampling())
        format = (fields.pop("text", None) or {}).get("format")
        if format and format.get("type") == "json_schema":
            kept = {name: value for name, value in format.items() if name != "type"}
            format = {"type": "json_schema", "json_schema": kept}
        if format:
            fields["response_format"] = format
        if "tools" in fields:
            fields["tools"] = [_tool(tool) for tool in fields["tools"]]
        return fields


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A function as `/v1/chat/completions` has it; another tool is refused there."""
    if tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


RunSource = GivenAnswers | Completions | ResponsesRun


def filled_messages(messages: list[EvalMessage], values: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages with the values. Raises TemplateFault."""
    return [
        {"role": message.role, "content": templates.rendered(message.text, values)}
        for message in messages
    ]


def check_config(config: Config) -> CustomConfig:
    """The config, if it can be used. Raises InvalidRequest."""
    if not isinstance(config, CustomConfig):
        raise _not_offered("data_source_config.type")
    check_schema(config.item_schema, "data_source_config.item_schema")
    return config


def check_source(source: RunSource) -> None:
    """Raises InvalidRequest if a run can't use it."""
    if not isinstance(source.source, RowsInside | RowsOfFile):
        raise _not_offered("data_source.source.type")
    if not isinstance(source, AskedModel):
        return
    asked = source.input_messages
    if isinstance(asked, MessageTemplates):
        param = "data_source.input_messages.template"
        if not 0 < len(asked.template) <= MAX_MESSAGES:
            problem = (
                f"`{param}` has {len(asked.template)} messages: it must have 1 to {MAX_MESSAGES}."
            )
            raise InvalidRequest(problem, param=param)
        for message in asked.template:
            templates.check(message.text)
    elif not asked.item_reference.startswith("item."):
        raise InvalidRequest(
            f"`item_reference` is {asked.item_reference[:80]!r}: it must begin with `item.`.",
            param="data_source.input_messages.item_reference",
        )


def _not_offered(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"`{param}` names earlier requests, of which nothing is kept for evals: give the rows in a "
        "file, or in the request.",
        param=param,
    )
