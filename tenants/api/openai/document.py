"""`/v1` in the OpenAPI document: operations from the registry, errors from the error tree.

The shapes are ours. Generated from the types of `openai` and `anthropic`, those of eleven requests
and answers alone take 34,000 lines of JSON (ours: 4,000 for twenty-two), describe hundreds of items
that the server refuses, and lack what vLLM adds. `tests/document` compares ours with these types.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import chain
from typing import Any

import msgspec
from django.conf import settings

from inference.errors import BY_CODE, InferenceError
from inference.operations.error_shapes import ANTHROPIC, OPENAI, ErrorShape
from inference.operations.operation import Operation
from inference.operations.registry import OPERATIONS
from inference.operations.responses import items as response_items
from tenants.api.endpoints.openai.batches import MAX_PAGE as BATCHES_PAGE
from tenants.api.endpoints.openai.evals import MAX_PAGE as EVALS_PAGE
from tenants.api.endpoints.openai.evals import SHOWN_STATUS
from tenants.api.endpoints.openai.files import LEAST_S, MOST_S, PURPOSES
from tenants.api.endpoints.openai.files import MAX_PAGE as FILES_PAGE
from tenants.api.endpoints.openai.fine_tuning import MAX_PAGE as TUNING_PAGE
from tenants.api.endpoints.openai.message_batches import MAX_PAGE as MESSAGE_BATCHES_PAGE
from tenants.api.endpoints.openai.organization import COST_GROUPS, COST_WIDTHS, USAGE_GROUPS, WIDTHS
from tenants.api.endpoints.usage.receipts import MAX_LIMIT
from tenants.api.openai.shapes import (
    batches,
    errors,
    evals,
    feedback,
    files,
    fine_tuning,
    generation,
    loading,
    message_batches,
    messages,
    models,
    pooling,
    receipts,
    responses,
    tokens,
    usage,
)
from tenants.api.openai.shapes.base import Open
from tenants.limits.kinds import KINDS, Kinds
from tenants.models import Purpose
from tenants.models.evals import EvalStatus

Object = dict[str, Any]

REF = "#/components/schemas/{name}"
BODIES: Mapping[str, tuple[type, type]] = {
    "chat": (generation.ChatRequest, generation.ChatCompletion),
    "completion": (generation.CompletionRequest, generation.Completion),
    "responses": (responses.ResponsesRequest, responses.ResponseObject),
    "embeddings": (pooling.EmbeddingsRequest, pooling.Embeddings),
    "score": (pooling.ScoreRequest, pooling.Scores),
    "rerank": (pooling.RerankRequest, pooling.Reranking),
    "messages": (messages.MessagesRequest, messages.AnthropicMessage),
    "input_tokens": (responses.InputTokensRequest, responses.InputTokens),
    "count_tokens": (messages.CountRequest, messages.TokenCount),
    "tokenize": (tokens.TokenizeRequest, tokens.Tokens),
    "detokenize": (tokens.DetokenizeRequest, tokens.DetokenizedText),
}
"""Request and answer of each operation in the registry, by the operation's name."""
ANSWERS = [models.Models, models.Model, usage.UsagePage, usage.CostPage, receipts.Receipts,
           receipts.SignedReceipt, receipts.JwkSet, receipts.ReceiptKey, errors.ErrorAnswer,
           errors.AnthropicErrorAnswer, responses.ResponseItems, responses.DeletedResponse,
           responses.ConversationRequest, responses.ConversationUpdate, responses.ConversationItems,
           responses.ConversationObject, responses.DeletedConversation, responses.Item,
           files.Files, files.DeletedFile, files.UploadRequest, files.UploadEnding,
           files.FileUpload, files.UploadPart, batches.BatchRequest, batches.Batches,
           message_batches.MessageBatchRequest, message_batches.MessageBatches,
           message_batches.DeletedMessageBatch, fine_tuning.FineTuningRequest,
           fine_tuning.FineTuningJobs, fine_tuning.FineTuningEvents,
           fine_tuning.FineTuningCheckpoints, evals.EvalRequest, evals.EvalUpdate, evals.Evals,
           evals.DeletedEval, evals.EvalRunRequest, evals.EvalRuns, evals.DeletedEvalRun,
           evals.EvalOutputItems, feedback.FeedbackRequest, feedback.Feedback,
           loading.LoadAdapterRequest, loading.UnloadAdapterRequest]  # fmt: skip
ASKING = {400, 401, 403, 404, 414, 431, 500, 503}
"""Error statuses of a GET under `/v1`."""
CHANGING = ASKING | {408, 409, 413, 415, 429}
"""Error statuses of operations that change files, batches and jobs, among others."""
IDEMPOTENCY_KEY: Object = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string"},
    "description": (
        "A retry with the same key and body receives the same answer and is billed only once."
    ),
}
STRUCTURE_REPAIR: Object = {
    "name": "Structure-Repair",
    "in": "header",
    "schema": {"type": "string", "enum": ["once", "never"]},
    "description": (
        "Whether a whole answer that does not follow the JSON schema or the tools of this request "
        "is asked for again, once; both are billed. By default as the tenant has it."
    ),
}
GENERATING = ASKING | {408, 409, 413, 415, 422, 429, 502, 504}
AT_THE_EDGE = {414, 431}
"""Refused before the operation is known: always in OpenAI's format."""
ERROR_SHAPES: Mapping[ErrorShape, tuple[str, type]] = {
    OPENAI: ("OpenAI", errors.ErrorAnswer),
    ANTHROPIC: ("Anthropic", errors.AnthropicErrorAnswer),
}
"""Each with the name of its responses and its type."""
RETRYING = ["retry-after", "x-should-retry"]
WORD: Object = {"type": "string"}
WORDS: Object = {"type": "array", "items": WORD}
TIME: Object = {"type": "integer", "description": "Unix time in seconds."}
LOAD_FORM: Object = {
    "type": "object",
    "required": ["lora_name", "files"],
    "properties": {
        "lora_name": WORD,
        "load_inplace": {"type": "boolean"},
        "base_model": WORD,
        "confirm_base_model": {"type": "boolean"},
        "files": {
            "type": "array",
            "items": {"type": "string", "format": "binary"},
            "description": "adapter_config.json and adapter_model.safetensors, or one archive.",
        },
    },
}
START, END = ("start_time", TIME), ("end_time", TIME)


def rate_limits(kinds: Kinds = KINDS) -> list[str]:
    """The names of the headers with which an answer shows what is left of its limits."""
    shown = [kind.header for kind in kinds.values() if kind.header]
    figures = ("limit", "remaining", "reset")
    return [f"x-ratelimit-{figure}-{header}" for header in shown for figure in figures]


def add(result: Object) -> None:
    """Add `/v1` to the document, which is mutated."""
    types = [*ANSWERS, *chain(*BODIES.values())]
    _, schemas = msgspec.json.schema_components(types, ref_template=REF)
    open_types = set(_open_types())
    for name, schema in schemas.items():
        schema["additionalProperties"] = name in open_types
        for field in schema["properties"].values():
            _correct(field)
    result["components"]["schemas"] |= schemas
    result["components"]["responses"] |= {
        f"{name}{status}": _error(status, kinds, shape)
        for name, shape in ERROR_SHAPES.values()
        for status, kinds in _kinds().items()
        if shape is errors.ErrorAnswer or status not in AT_THE_EDGE
    }
    server = {"url": settings.API_URL, "description": "The gateways, for `/v1`."}
    for path, method, operation in _operations():
        described = {"tags": ["v1"], "servers": [server], **operation}
        result["paths"].setdefault(path, {})[method] = described


def _open_types(kind: type[Open] = Open) -> Iterator[str]:
    """The names of the types that may have other fields."""
    for one in kind.__subclasses__():
        yield one.__name__
        yield from _open_types(one)


def _correct(field: Object) -> None:
    """Correct a field's schema. An optional field is absent rather than null, so it gets no default
    (client generators treat a field with a default as always present). An object without a schema
    may have any properties."""
    if field.get("default", ...) is None:
        del field["default"]
    for part in (field, field.get("items", {}), *field.get("anyOf", [])):
        for one in (part, part.get("items", {})):
            if one.get("type") == "object":
                one.setdefault("additionalProperties", True)


def _operations() -> Iterator[tuple[str, str, Object]]:
    """Path, method and description of each operation."""
    for served in OPERATIONS:
        yield served.path, "post", _posting(served)
    of_usage = _period(WIDTHS, USAGE_GROUPS, "models")
    of_costs = _period(COST_WIDTHS, COST_GROUPS, "line_items")
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT}
    of_receipts = _query([START, END, ("limit", limit), ("after", WORD)])
    for path, name, answer, parameters in (
        ("models", "models_list", models.Models, []),
        ("models/{model}", "models_retrieve", models.Model, [_within("model")]),
        ("organization/usage/completions", "organization_usage", usage.UsagePage, of_usage),
        ("organization/costs", "organization_costs", usage.CostPage, of_costs),
        ("usage/receipts", "receipts_list", receipts.Receipts, of_receipts),
        (
            "usage/receipts/{request_id}",
            "receipts_retrieve",
            receipts.SignedReceipt,
            [_within("request_id")],
        ),
    ):
        yield f"/v1/{path}", "get", _asking(name, answer, parameters)
    for path, shape in (("jwks.json", receipts.JwkSet), ("key", receipts.ReceiptKey)):
        operation = _asking(f"receipts_{path.removesuffix('.json')}", shape)
        yield f"/v1/usage/receipts/{path}", "get", operation | {"security": [{}]}
    yield from _of_responses()
    yield from _of_conversations()
    yield from _of_files()
    yield from _of_uploads()
    yield from _of_batches()
    yield from _of_message_batches()
    yield from _of_fine_tuning()
    yield from _of_evals()
    given = _changing("feedback_create", feedback.Feedback) | _body(feedback.FeedbackRequest)
    yield "/v1/feedback", "post", given
    yield from _of_loading()


def _of_loading() -> Iterator[tuple[str, str, Object]]:
    content = {"text/plain": {"schema": WORD}}
    for name, shape in (
        ("load_lora_adapter", loading.LoadAdapterRequest),
        ("unload_lora_adapter", loading.UnloadAdapterRequest),
    ):
        operation = _changing(name, models.Model) | _body(shape)
        operation["responses"]["200"]["content"] = content
        if name == "load_lora_adapter":
            operation["responses"]["200"]["headers"]["x-lorikeet-adapter"] = {"schema": WORD}
            operation["requestBody"]["content"]["multipart/form-data"] = {"schema": LOAD_FORM}
        yield f"/v1/{name}", "post", operation


def _of_responses() -> Iterator[tuple[str, str, Object]]:
    id, path = _within("id"), "/v1/responses/{id}"
    stored = _looking_up("responses_retrieve", responses.ResponseObject, [id])
    yield path, "get", stored
    yield path, "delete", _looking_up("responses_delete", responses.DeletedResponse, [id])
    page = _pages(response_items.MAX_PAGE)
    listed = _looking_up("responses_input_items", responses.ResponseItems, [id, *page])
    yield f"{path}/input_items", "get", listed
    cancelled = _looking_up("responses_cancel", responses.ResponseObject, [id])
    yield f"{path}/cancel", "post", cancelled


def _of_conversations() -> Iterator[tuple[str, str, Object]]:
    id, item, whole = _within("id"), _within("item"), responses.ConversationObject
    path = "/v1/conversations/{id}"
    made = _changing("conversations_create", whole)
    yield "/v1/conversations", "post", made | _body(responses.ConversationRequest)
    yield path, "get", _looking_up("conversations_retrieve", whole, [id])
    updated = _changing("conversations_update", whole, [id])
    yield path, "post", updated | _body(responses.ConversationUpdate)
    yield path, "delete", _changing("conversations_delete", responses.DeletedConversation, [id])
    page = _pages(response_items.MAX_PAGE)
    listed = _looking_up("conversation_items_list", responses.ResponseItems, [id, *page])
    yield f"{path}/items", "get", listed
    added = _changing("conversation_items_create", responses.ResponseItems, [id])
    yield f"{path}/items", "post", added | _body(responses.ConversationItems)
    one = _looking_up("conversation_items_retrieve", responses.Item, [id, item])
    yield f"{path}/items/{{item}}", "get", one
    yield (
        f"{path}/items/{{item}}",
        "delete",
        _changing("conversation_items_delete", whole, [id, item]),
    )


def _body(shape: type) -> Object:
    return {"requestBody": {"required": True, "content": _json(shape)}}


def _of_files() -> Iterator[tuple[str, str, Object]]:
    id, page = _within("id"), _pages(FILES_PAGE)
    purposes = {"type": "string", "enum": [*Purpose]}
    listed = [*page, *_query([("purpose", purposes)])]
    yield "/v1/files", "get", _asking("files_list", files.Files, listed)
    form = {
        "type": "object",
        "required": ["file", "purpose"],
        "properties": {
            "file": {"type": "string", "format": "binary"},
            "purpose": {"type": "string", "enum": PURPOSES},
            "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
            "expires_after[seconds]": {
                "type": "integer", "minimum": LEAST_S, "maximum": MOST_S
            },
        },
    }  # fmt: skip
    body = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    made = _changing("files_create", files.File) | {"requestBody": body}
    yield "/v1/files", "post", made
    yield "/v1/files/{id}", "get", _asking("files_retrieve", files.File, [id])
    yield "/v1/files/{id}", "delete", _changing("files_delete", files.DeletedFile, [id])
    content = _asking("files_content", files.File, [id])
    schema = {"schema": {"type": "string", "format": "binary"}}
    content["responses"]["200"]["content"] = {"application/octet-stream": schema}
    yield "/v1/files/{id}/content", "get", content


def _of_uploads() -> Iterator[tuple[str, str, Object]]:
    id = _within("id")
    made = _changing("file_uploads_create", files.FileUpload)
    body = {"required": True, "content": _json(files.UploadRequest)}
    yield "/v1/uploads", "post", made | {"requestBody": body}
    form = {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "string", "format": "binary"}},
    }
    body = {"required": True, "content": {"multipart/form-data": {"schema": form}}}
    sent = _changing("file_uploads_parts_create", files.UploadPart, [id])
    yield "/v1/uploads/{id}/parts", "post", sent | {"requestBody": body}
    ended = _changing("file_uploads_complete", files.FileUpload, [id])
    body = {"required": True, "content": _json(files.UploadEnding)}
    yield "/v1/uploads/{id}/complete", "post", ended | {"requestBody": body}
    yield (
        "/v1/uploads/{id}/cancel",
        "post",
        _changing("file_uploads_cancel", files.FileUpload, [id]),
    )


def _of_batches() -> Iterator[tuple[str, str, Object]]:
    id = _within("id")
    listed = _asking("batches_list", batches.Batches, _pages(BATCHES_PAGE))
    yield "/v1/batches", "get", listed
    made = _changing("batches_create", batches.Batch, [IDEMPOTENCY_KEY])
    body = {"required": True, "content": _json(batches.BatchRequest)}
    yield "/v1/batches", "post", made | {"requestBody": body}
    yield "/v1/batches/{id}", "get", _asking("batches_retrieve", batches.Batch, [id])
    yield "/v1/batches/{id}/cancel", "post", _changing("batches_cancel", batches.Batch, [id])


def _of_fine_tuning() -> Iterator[tuple[str, str, Object]]:
    id, page, whole = _within("id"), _pages(TUNING_PAGE), fine_tuning.FineTuningJob
    path = "/v1/fine_tuning/jobs"
    yield path, "get", _asking("fine_tuning_list", fine_tuning.FineTuningJobs, page)
    made = _changing("fine_tuning_create", whole, [IDEMPOTENCY_KEY])
    yield path, "post", made | _body(fine_tuning.FineTuningRequest)
    yield f"{path}/{{id}}", "get", _asking("fine_tuning_retrieve", whole, [id])
    for name, listed in (
        ("events", fine_tuning.FineTuningEvents),
        ("checkpoints", fine_tuning.FineTuningCheckpoints),
    ):
        yield f"{path}/{{id}}/{name}", "get", _asking(f"fine_tuning_{name}", listed, [id, *page])
    for name in ("cancel", "pause", "resume"):
        yield f"{path}/{{id}}/{name}", "post", _changing(f"fine_tuning_{name}", whole, [id])


def _of_evals() -> Iterator[tuple[str, str, Object]]:
    id, run_id, page = _within("id"), _within("run_id"), _pages(EVALS_PAGE)
    path, whole, run = "/v1/evals", evals.EvalObject, evals.EvalRunObject
    ordered = _query([("order_by", {"type": "string", "enum": ["created_at"]})])
    yield path, "get", _asking("evals_list", evals.Evals, [*page, *ordered])
    yield path, "post", _changing("evals_create", whole) | _body(evals.EvalRequest)
    path = f"{path}/{{id}}"
    yield path, "get", _asking("evals_retrieve", whole, [id])
    yield path, "post", _changing("evals_update", whole, [id]) | _body(evals.EvalUpdate)
    yield path, "delete", _changing("evals_delete", evals.DeletedEval, [id])
    path = f"{path}/runs"
    listed = [id, *page, *_query([("status", {"type": "string", "enum": EvalStatus.values})])]
    yield path, "get", _asking("eval_runs_list", evals.EvalRuns, listed)
    made = _changing("eval_runs_create", run, [id])
    yield path, "post", made | _body(evals.EvalRunRequest)
    path, ids = f"{path}/{{run_id}}", [id, run_id]
    yield path, "get", _asking("eval_runs_retrieve", run, ids)
    yield path, "post", _changing("eval_runs_stop", run, ids)
    yield f"{path}/cancel", "post", _changing("eval_runs_cancel", run, ids)
    yield path, "delete", _changing("eval_runs_delete", evals.DeletedEvalRun, ids)
    path, statuses = f"{path}/output_items", {"type": "string", "enum": [*SHOWN_STATUS.values()]}
    listed = [*ids, *page, *_query([("status", statuses)])]
    yield path, "get", _asking("eval_items_list", evals.EvalOutputItems, listed)
    one = _asking("eval_items_retrieve", evals.EvalOutputItem, [*ids, _within("item_id")])
    yield f"{path}/{{item_id}}", "get", one


def _of_message_batches() -> Iterator[tuple[str, str, Object]]:
    id, whole, path = _within("id"), message_batches.MessageBatch, "/v1/messages/batches"
    limit = {"type": "integer", "minimum": 1, "maximum": MESSAGE_BATCHES_PAGE}
    page = _query([("after_id", WORD), ("before_id", WORD), ("limit", limit)])
    listed = _asking("message_batches_list", message_batches.MessageBatches, page)
    made = _changing("message_batches_create", whole)
    deleted = _changing("message_batches_delete", message_batches.DeletedMessageBatch, [id])
    results = _asking("message_batches_results", whole, [id])
    lines = {"schema": {"type": "string", "format": "binary"}}
    results["responses"]["200"]["content"] = {"application/octet-stream": lines}
    cancelled = _changing("message_batches_cancel", whole, [id])
    for at, method, operation, statuses in (
        (path, "get", listed, ASKING),
        (path, "post", made | _body(message_batches.MessageBatchRequest), CHANGING),
        (f"{path}/{{id}}", "get", _asking("message_batches_retrieve", whole, [id]), ASKING),
        (f"{path}/{{id}}", "delete", deleted, CHANGING),
        (f"{path}/{{id}}/cancel", "post", cancelled, CHANGING),
        (f"{path}/{{id}}/results", "get", results, ASKING),
    ):
        answered = operation["responses"] | _errors(statuses, ANTHROPIC)
        yield at, method, operation | {"responses": answered}


def _pages(most: int) -> list[Object]:
    """The query parameters of a list."""
    limit = {"type": "integer", "minimum": 1, "maximum": most}
    order = {"type": "string", "enum": ["asc", "desc"]}
    return _query([("after", WORD), ("limit", limit), ("order", order)])


def _changing(name: str, answer: type, parameters: Sequence[Object] = ()) -> Object:
    """An operation that creates, ends or deletes something."""
    operation = _asking(name, answer, parameters)
    answered = {"200": operation["responses"]["200"], **_errors(CHANGING)}
    return operation | {"responses": answered}


def _looking_up(name: str, answer: type, parameters: Sequence[Object]) -> Object:
    """An operation on a stored response. Requests for missing ones are slowed, and counted."""
    operation = _asking(name, answer, parameters)
    return operation | {"responses": operation["responses"] | _errors({429})}


def _within(name: str) -> Object:
    """A path parameter."""
    return {"name": name, "in": "path", "schema": WORD, "required": True}


def _query(named: Iterable[tuple[str, Object]], required: Sequence[str] = ()) -> list[Object]:
    return [
        {"name": name, "in": "query", "schema": schema, "required": name in required}
        for name, schema in named
    ]


def _period(widths: Mapping[str, Any], groups: Mapping[str, Any], names: str) -> list[Object]:
    """The query parameters of a report."""
    most = max(width.max_limit for width in widths.values())
    grouped = {"type": "array", "items": {"type": "string", "enum": [*groups]}}
    asked = [START, END, ("bucket_width", {"type": "string", "enum": [*widths]}),
             ("limit", {"type": "integer", "minimum": 1, "maximum": most}), ("page", WORD),
             ("group_by", grouped), ("api_key_ids", WORDS), (names, WORDS)]  # fmt: skip
    return _query(asked, required=["start_time"])


def _asking(name: str, answer: type, parameters: Sequence[Object] = ()) -> Object:
    """A GET operation."""
    return {
        "operationId": name,
        "parameters": [*parameters],
        "security": [{"apiKey": []}],
        "responses": {"200": _answer(answer), **_errors(ASKING)},
    }


def _posting(operation: Operation) -> Object:
    """The POST of an operation."""
    request, answer = BODIES[operation.name]
    described = _answer(answer)
    described["headers"] |= {header: {"schema": WORD} for header in rate_limits()}
    parameters = [IDEMPOTENCY_KEY]
    if "stream" in operation.accepted:
        described["content"]["text/event-stream"] = {
            "schema": {"type": "string", "description": "Chunks if `stream` is true."}
        }
        described["headers"]["structure-repair"] = {
            "schema": {"type": "string", "enum": ["repaired", "failed"]}
        }
        parameters.append(STRUCTURE_REPAIR)
    return {
        "operationId": operation.name,
        "parameters": parameters,
        "security": [{"apiKey": []}],
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {"200": described, **_errors(GENERATING, operation.errors)},
    }


def _json(shape: type) -> Object:
    return {"application/json": {"schema": {"$ref": REF.format(name=shape.__name__)}}}


def _answer(shape: type) -> Object:
    headers = {"x-request-id": {"$ref": "#/components/headers/RequestId"}}
    return {"description": "", "headers": headers, "content": _json(shape)}


def _errors(statuses: Iterable[int], shape: ErrorShape = OPENAI) -> Object:
    def name(status: int) -> str:
        return ERROR_SHAPES[OPENAI if status in AT_THE_EDGE else shape][0]

    return {
        str(status): {"$ref": f"#/components/responses/{name(status)}{status}"}
        for status in sorted(statuses)
    }


def _kinds() -> Mapping[int, list[type[InferenceError]]]:
    """The errors of each status."""
    found: defaultdict[int, list[type[InferenceError]]] = defaultdict(list)
    for _, kind in sorted(BY_CODE.items()):
        if kind.http_status in GENERATING:
            found[kind.http_status].append(kind)
    return dict(sorted(found.items()))


def _error(status: int, kinds: Sequence[type[InferenceError]], shape: type) -> Object:
    lines = [f"* `{kind.code}`: {(kind.__doc__ or '').strip()}" for kind in kinds]
    names = [*RETRYING, *(["www-authenticate"] if status == HTTPStatus.UNAUTHORIZED else [])]
    headers: Object = {name: {"schema": WORD} for name in names}
    return {
        "description": "\n".join(lines),
        "headers": {"x-request-id": {"$ref": "#/components/headers/RequestId"}} | headers,
        "content": _json(shape),
    }
