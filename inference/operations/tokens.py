"""`POST /v1/tokenize` and `POST /v1/detokenize`, in vLLM's shape."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.errors import InvalidRequest
from inference.link.workload import NO_OUTPUT
from inference.operations.bodies.constraints import check_tools, offer_tools
from inference.operations.bodies.reading import decode
from inference.operations.chat import ChatMessage, check_messages, plain_messages, template_switches
from inference.operations.estimate import MAX_TOKENS
from inference.operations.instant import InstantOperation, PlainTokenizer, check_text
from inference.operations.openai import ARRAY, NULL
from inference.operations.operation import Call


class _TokenizeFields(msgspec.Struct):
    model: str
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: msgspec.Raw = NULL
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class Tokenize(InstantOperation):
    """A text, or the messages of a chat, as the model's tokens."""

    name = "tokenize"
    path = "/v1/tokenize"
    also_at = ("/tokenize",)
    accepted = frozenset(
        {
            "add_generation_prompt",
            "add_special_tokens",
            "continue_final_message",
            "messages",
            "prompt",
            "return_token_strs",
            "tools",
        }
    )
    decoder = msgspec.json.Decoder(_TokenizeFields)

    def parse(self, body: bytes) -> Call:
        """See `Operation`."""
        fields: _TokenizeFields = decode(self.decoder, body)
        if (fields.prompt is None) == (fields.messages is None):
            raise InvalidRequest("Send either `prompt` or `messages`, not both.", param="prompt")
        if fields.prompt is not None:
            check_text(len(fields.prompt), "prompt")
        if fields.messages is not None:
            texts = (text for message in fields.messages for text in message.texts())
            check_text(sum(map(len, texts)), "messages")
        check_tools(fields.tools, must_use=False)
        return Call(self, fields.model, workload=NO_OUTPUT, body=body)

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Operation`."""
        kept = {name: value for name, value in super().allowed(body).items() if value is not None}
        if "messages" in kept:
            check_messages(kept["messages"])
            if switches := template_switches(body.get("chat_template_kwargs")):
                kept["chat_template_kwargs"] = switches
        offer_tools(kept)
        return kept

    def plain_answer(self, fields: dict[str, Any], tokenizer: PlainTokenizer) -> dict[str, Any]:
        """See `Operation`."""
        if "messages" in fields:
            text = plain_messages(fields["messages"]).whole
        else:
            text = fields["prompt"]
        tokens = tokenizer.encode(text)
        strings = [tokenizer.decode([token]) for token in tokens]
        return {
            "count": len(tokens),
            "max_model_len": tokenizer.max_model_len,
            "tokens": tokens,
            "token_strs": strings if fields.get("return_token_strs") else None,
        }


class _DetokenizeFields(msgspec.Struct):
    model: str
    tokens: msgspec.Raw


class Detokenize(InstantOperation):
    """Tokens as text."""

    name = "detokenize"
    path = "/v1/detokenize"
    also_at = ("/detokenize",)
    accepted = frozenset({"tokens"})
    decoder = msgspec.json.Decoder(_DetokenizeFields)
    max_numbers = MAX_TOKENS

    def parse(self, body: bytes) -> Call:
        """See `Operation`. The tokens are checked by the engine: decoding so many numbers would
        block this loop."""
        fields: _DetokenizeFields = decode(self.decoder, body)
        if ARRAY.match(fields.tokens) is None:
            raise InvalidRequest("`tokens` must be an array of integers.", param="tokens")
        if (count := bytes(fields.tokens).count(b",") + 1) > MAX_TOKENS:
            message = f"`tokens` has {count} tokens: it can have at most {MAX_TOKENS}."
            raise InvalidRequest(message, param="tokens")
        return Call(self, fields.model, workload=NO_OUTPUT, body=body)

    def allowed(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Operation`."""
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(type(t) is int and t >= 0 for t in tokens):
            raise InvalidRequest(
                "`tokens` must be an array of tokens: integers of at least 0.",
                param="tokens",
            )
        return {"tokens": tokens}

    def plain_answer(self, fields: dict[str, Any], tokenizer: PlainTokenizer) -> dict[str, Any]:
        """See `Operation`."""
        return {"prompt": tokenizer.decode(fields["tokens"])}


TOKENIZE, DETOKENIZE = Tokenize(), Detokenize()
