"""Types of the bodies of `/v1`, from which its OpenAPI document is generated.

A field with a default may be missing; a field of an answer without a default is always present.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Shape(msgspec.Struct):
    """A type with exactly these fields."""


class Open(Shape):
    """A type that may have other fields: vLLM adds some to answers; requests' are ignored."""


Tier = Literal["auto", "default", "flex", "priority", "scale", "fast"]


class StreamOptions(Open):
    include_usage: bool | None = None


class Sampled(Open):
    """Fields of any request that generates."""

    model: str
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: dict[str, float] | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    service_tier: Tier | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stream: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    user: str | None = None


class Generation(Sampled):
    """Fields of a request whose answer is a list of choices."""

    max_tokens: int | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None
    stream_options: StreamOptions | None = None


class TextPart(Open):
    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class GivenMessage(Open):
    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatRequest(Generation, kw_only=True):
    """Messages, and parameters for generating the next one."""

    messages: list[GivenMessage]
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, bool] | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    safety_identifier: str | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    top_logprobs: int | None = None


class CompletionRequest(Generation, kw_only=True):
    """One or more prompts, as texts or as tokens, and parameters for continuing them."""

    prompt: str | list[str | int | list[int]]
    add_special_tokens: bool | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


class FinishDetails(Open):
    """The limit that ended an answer early."""

    code: str
    message: str


class PromptTokensDetails(Open):
    cached_tokens: int | None = None


class CompletionTokensDetails(Open):
    reasoning_tokens: int | None = None


class TokenUsage(Open):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None


class Message(Open):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[dict[str, Any]]
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Choice(Open):
    index: int
    finish_reason: str | None
    logprobs: dict[str, Any] | None = None
    finish_details: FinishDetails | None = None


class ChatChoice(Choice, kw_only=True):
    message: Message


class TextChoice(Choice, kw_only=True):
    text: str


class Whole(Open):
    id: str
    created: int
    model: str
    usage: TokenUsage
    system_fingerprint: str | None = None


class ChatCompletion(Whole, kw_only=True):
    object: Literal["chat.completion"]
    service_tier: Literal["default", "flex"]
    choices: list[ChatChoice]


class Completion(Whole, kw_only=True):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class EmbeddingsRequest(Open):
    """Inputs, as texts or as tokens, and the format of their vectors."""

    model: str
    input: str | list[str | int | list[int]]
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] | None = None
    truncate_prompt_tokens: int | None = None
    user: str | None = None


class PromptUsage(Shape):
    """Usage of an operation that generates nothing."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Shape):
    """The vector of one input: numbers, or 4-byte floats encoded in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(Shape):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


class ScoreRequest(Open):
    """Texts to compare, in one of the pairs of fields that vLLM accepts."""

    model: str
    data_1: str | list[str] | None = None
    data_2: str | list[str] | None = None
    documents: str | list[str] | None = None
    items: str | list[str] | None = None
    queries: str | list[str] | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    truncate_prompt_tokens: int | None = None


class ScoreOfPair(Shape):
    index: int
    object: Literal["score"]
    score: float


class Scores(Shape):
    """A score for each pair of texts."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreOfPair]
    usage: PromptUsage


class RerankRequest(Open):
    """A query, and documents to rank by how well they answer it."""

    model: str
    query: str
    documents: str | list[str]
    top_n: int | None = None
    truncate_prompt_tokens: int | None = None


class RankedText(Shape):
    text: str


class RankedDocument(Shape):
    index: int
    document: RankedText
    relevance_score: float


class Reranking(Shape):
    """The documents, the best match for the query first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: PromptUsage


class Pricing(Shape):
    """Prices as exact decimal numbers."""

    currency: str
    unit: Literal["1M tokens"]
    prompt: str
    cached_prompt: str
    completion: str


class Capabilities(Shape):
    tools: bool
    reasoning: bool
    structured_outputs: bool
    vision: bool


class FunctionTool(Open):
    """A function that the client runs."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Item(Open):
    """An item of a conversation, by its type, which may be omitted for a message."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] | None = None


class ResponsesRequest(Sampled, kw_only=True):
    """Instructions and items, and parameters for generating the next ones."""

    input: str | list[Item]
    background: bool | None = None
    conversation: str | dict[str, str] | None = None
    chat_template_kwargs: dict[str, bool] | None = None
    include: list[str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[FunctionTool] | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None


class InputTokensDetails(Shape):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Shape):
    reasoning_tokens: int


class ResponseUsage(Shape):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(Shape):
    reason: Literal["max_output_tokens"]


class ResponseObject(Shape):
    """The parameters of a request, and the items of its answer."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: dict[str, Any] | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[dict[str, Any]]
    previous_response_id: str | None
    store: bool
    usage: ResponseUsage | None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default", "flex"]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    finish_details: FinishDetails | None = None
    conversation: dict[str, str] | None = None


class Tool(Open):
    """A tool that the client runs."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class Block(Open):
    """A part of a turn's content, by its type."""

    type: Literal["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]


class MessagesTurn(Open):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class CountRequest(Open):
    """A conversation as in Anthropic's API."""

    model: str
    messages: list[MessagesTurn]
    output_config: dict[str, Any] | None = None
    system: str | list[Block] | None = None
    thinking: dict[str, Any] | None = None
    tool_choice: dict[str, Any] | None = None
    tools: list[Tool] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """A conversation, and parameters for generating its next turn."""

    max_tokens: int
    metadata: dict[str, str | None] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


class ThinkingTokens(Shape):
    thinking_tokens: int


class MessageUsage(Shape):
    """`input_tokens` are those that the prefix cache did not hold."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    cache_creation: None
    inference_geo: None
    output_tokens_details: ThinkingTokens
    server_tool_use: None
    service_tier: Literal["standard"]


class AnthropicMessage(Shape):
    """The assistant's turn."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    container: None
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    stop_details: None
    usage: MessageUsage
    finish_details: FinishDetails | None = None


class TokenCount(Shape):
    input_tokens: int


class TokenizeRequest(Open):
    """A text or the messages of a chat."""

    model: str
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, bool] | None = None
    continue_final_message: bool | None = None
    messages: list[GivenMessage] | None = None
    prompt: str | None = None
    return_token_strs: bool | None = None
    tools: list[dict[str, Any]] | None = None


class Tokens(Shape):
    """The tokens that the model reads."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(Open):
    model: str
    tokens: list[int]


class DetokenizedText(Shape):
    prompt: str


class AnthropicError(Shape):
    type: str
    message: str
    code: str
    param: str | None


class AnthropicErrorAnswer(Shape):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: AnthropicError
    request_id: str | None


class Model(Shape):
    """A base model, or an adapter."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    pricing: Pricing
    max_model_len: int | None = None
    operations: list[str] | None = None
    capabilities: Capabilities | None = None


class Models(Shape):
    object: Literal["list"]
    data: list[Model]


class UsageResult(Shape):
    object: Literal["organization.usage.completions.result"]
    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    input_audio_tokens: int
    output_tokens: int
    output_audio_tokens: int
    num_model_requests: int
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    batch: bool | None
    service_tier: str | None


class Amount(Shape):
    value: float
    currency: str


class CostResult(Shape):
    object: Literal["organization.costs.result"]
    amount: Amount
    line_item: str | None
    project_id: str | None
    api_key_id: str | None


class Bucket(Shape):
    object: Literal["bucket"]
    start_time: int
    end_time: int


class UsageBucket(Bucket, kw_only=True):
    results: list[UsageResult]


class CostBucket(Bucket, kw_only=True):
    results: list[CostResult]


class Page(Shape):
    object: Literal["page"]
    has_more: bool
    next_page: str | None


class UsagePage(Page, kw_only=True):
    """Tokens and requests by time."""

    data: list[UsageBucket]


class CostPage(Page, kw_only=True):
    """Costs by time."""

    data: list[CostBucket]


class Receipt(Shape):
    """The usage and the cost of one request."""

    format: str
    id: str
    tenant: str
    api_key_id: int
    model: str
    base_model: str
    adapter: str | None
    adapter_version: int | None
    adapter_digest: str | None
    attempt: int
    engine: str
    started_at: str
    queue_us: int
    load_us: int
    ttft_us: int | None
    total_us: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    prompt_price: int
    cached_prompt_price: int
    output_price: int
    cost: str
    cost_pico: int
    currency: str
    finish_reason: str


class SignedReceipt(Shape):
    object: Literal["usage.receipt"]
    receipt: Receipt
    jws: str


class Receipts(Shape):
    object: Literal["list"]
    data: list[SignedReceipt]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Jwk(Shape):
    kty: str
    crv: str
    x: str
    kid: str
    alg: str
    use: str


class JwkSet(Shape):
    """The keys that verify receipts (RFC 7517)."""

    keys: list[Jwk]


class ReceiptKey(Shape):
    object: Literal["usage.receipt_key"]
    algorithm: str
    key_id: str
    public_key: str
    pem: str


class File(Shape):
    """A file; its content is at `/v1/files/{id}/content`."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "fine-tune", "evals", "user_data", "batch_output"]
    status: Literal["processed"]


class DeletedFile(Shape):
    id: str
    object: Literal["file"]
    deleted: bool


class UploadRequest(Shape):
    """A file that is to be uploaded in parts."""

    filename: str
    purpose: Literal["batch", "fine-tune", "evals", "user_data"]
    bytes: int
    mime_type: str
    expires_after: OutputExpiry | None = None


class UploadEnding(Shape):
    """The parts of the file, in order."""

    part_ids: list[str]
    md5: str | None = None


class FileUpload(Shape):
    """An upload, which has a `file` after it is complete."""

    id: str
    object: Literal["upload"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: File | None


class UploadPart(Shape):
    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str


class Listed(Shape):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseItems(Listed, kw_only=True):
    """The items that the model was given for a response."""

    data: list[Item]


class DeletedResponse(Shape):
    id: str
    object: Literal["response"]
    deleted: bool


class ConversationRequest(Shape, kw_only=True):
    """The items that a conversation begins with."""

    items: list[Item] | None = None
    metadata: dict[str, str] | None = None


class ConversationUpdate(Shape):
    metadata: dict[str, str] | None


class ConversationItems(Shape):
    """Items to add."""

    items: list[Item]


class ConversationObject(Shape):
    """A conversation that responses continue."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(Shape):
    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


class Files(Listed, kw_only=True):
    data: list[File]


class OutputExpiry(Shape):
    anchor: Literal["created_at"]
    seconds: int


class BatchRequest(Shape):
    """A file of requests to one endpoint."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None


class BatchError(Shape):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(Shape):
    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(Shape):
    total: int
    completed: int
    failed: int


class InputDetails(Shape):
    cached_tokens: int


class OutputDetails(Shape):
    reasoning_tokens: int


class BatchUsage(Shape):
    """Usage of the answered lines."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Batch(Shape):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
        "cancelled",
    ]  # fmt: skip
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class Batches(Listed, kw_only=True):
    data: list[Batch]


class Error(Shape):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Shape):
    """An error in OpenAI's format."""

    error: Error
