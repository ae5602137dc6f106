"""Receipts and the keys that verify them."""

from __future__ import annotations

from typing import Literal

from tenants.api.openai.shapes.base import Shape


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
    is_estimated: bool
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
