"""Signed receipts: one request's ledger event, provable to whoever holds the public key.

A receipt is a JSON object:

    {"object": "usage.receipt",
     "receipt": {...},
     "signature": {"algorithm": "Ed25519", "key_id": "...", "value": "..."}}

What is signed is the value of `receipt` in RFC 8785's canonical form: one line of UTF-8, the names
sorted, no space between them, nothing escaped but what JSON makes one escape. All of its numbers
are integers, so nothing depends on how a language writes a float. `value` is the signature (RFC
8032) in hexadecimal; `key_id` is the first 16 hexadecimal digits of the SHA-256 of the 32 bytes of
the public key.

The private key is derived from the setting RECEIPT_KEY: HKDF-SHA256 of its UTF-8 bytes without a
salt, with INFO, is Ed25519's 32-byte seed. With another RECEIPT_KEY new receipts get another
`key_id`; the old ones are verified with the public key of their time, so keep it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from tenants.billing.money import amount
from tenants.models import AdapterVersion, UsageEvent

ALGORITHM = "Ed25519"
FORMAT = "lorikeet-receipt-1"
"""Stands in every receipt, so that the key signs nothing that could be taken for something else."""
INFO = b"lorikeet usage receipts, Ed25519, 1"
KEY_ID_DIGITS = 16
HEX_KEY = re.compile(r"[0-9A-Fa-f]{64}")
OF_THE_VERSION = frozenset({"adapter_version", "adapter_digest"})
"""Known only as long as the adapter's version exists; the event itself keeps its adapter's name."""

OF_THE_FIRST: Mapping[str, Any] = {"attempt": 1}
"""What receipts say of a first attempt that were given out before they named attempts."""


class InvalidReceipt(ValueError):
    """It is no receipt, or not one that this key signed; the message says why."""


class InvalidPublicKey(ValueError):
    """It is no Ed25519 public key in PEM or hexadecimal."""


def canonical(receipt: Mapping[str, Any]) -> bytes:
    """What is signed of a receipt (RFC 8785).

    Raises:
        ValueError: it holds what JSON has no words for.
    """
    text = json.dumps(
        receipt, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True
    )
    return text.encode()


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Verifies receipts."""

    raw: bytes
    """32 bytes."""

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """A key in PEM or as 64 hexadecimal digits.

        Raises:
            InvalidPublicKey: it is neither.
        """
        if HEX_KEY.fullmatch(text.strip()):
            return cls(bytes.fromhex(text.strip()))
        try:
            found = serialization.load_pem_public_key(text.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InvalidPublicKey("neither PEM nor 64 hexadecimal digits") from error
        if not isinstance(found, Ed25519PublicKey):
            raise InvalidPublicKey("a public key, but not of Ed25519")
        return cls(found.public_bytes_raw())

    @property
    def id(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()[:KEY_ID_DIGITS]

    @property
    def pem(self) -> str:
        key = Ed25519PublicKey.from_public_bytes(self.raw)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return key.public_bytes(serialization.Encoding.PEM, form).decode()

    def verify(self, signed: Mapping[str, Any]) -> Mapping[str, Any]:
        """The signed part of a receipt.

        Raises:
            InvalidReceipt: it is no receipt, or this key did not sign it as it is.
        """
        receipt, signature = signed.get("receipt"), signed.get("signature")
        if not isinstance(receipt, dict) or receipt.get("format") != FORMAT:
            raise InvalidReceipt(f"it is not a receipt of the format {FORMAT}")
        if not isinstance(signature, dict) or signature.get("algorithm") != ALGORITHM:
            raise InvalidReceipt(f"it has no {ALGORITHM} signature")
        if signature.get("key_id") != self.id:
            raise InvalidReceipt(
                f"it names the key {str(signature.get('key_id'))[:64]!r}, this is {self.id!r}"
            )
        try:
            value = bytes.fromhex(str(signature.get("value")))
            Ed25519PublicKey.from_public_bytes(self.raw).verify(value, canonical(receipt))
        except (ValueError, InvalidSignature) as error:
            raise InvalidReceipt("the signature is not of what the receipt says") from error
        return receipt


class Signer:
    """Signs receipts with the key that a secret makes."""

    def __init__(self, secret: str) -> None:
        seed = HKDF(hashes.SHA256(), 32, salt=None, info=INFO).derive(secret.encode())
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = PublicKey(self._key.public_key().public_bytes_raw())
        self._key_id = self.public_key.id

    def sign(self, receipt: Mapping[str, Any]) -> dict[str, Any]:
        """The receipt with its signature, as it is given out."""
        value = self._key.sign(canonical(receipt)).hex()
        signature = {"algorithm": ALGORITHM, "key_id": self._key_id, "value": value}
        return {"object": "usage.receipt", "receipt": dict(receipt), "signature": signature}


_signer = lru_cache(maxsize=1)(Signer)


def signer() -> Signer:
    """The one of this installation."""
    return _signer(settings.RECEIPT_KEY)


def describe(event: UsageEvent) -> dict[str, Any]:
    """What a receipt says of an event; reads its `tenant` and `version`, so select them with many.

    Times are RFC 3339 in UTC, durations whole microseconds, prices micro-units of the currency per
    million tokens, `cost` a decimal number of the currency and `cost_pico` the same in pico-units.
    """
    version = _version(event)
    return {
        "format": FORMAT,
        "id": f"req_{event.id}",
        "tenant": event.tenant.slug,
        "api_key_id": event.key_id,
        "model": event.model,
        "base_model": event.base_model,
        "adapter": event.adapter or None,
        "adapter_version": version.number if version else None,
        "adapter_digest": version.digest if version else None,
        "attempt": event.attempt,
        "engine": event.engine_id,
        "started_at": event.started_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "queue_us": _microseconds(event.queue_s),
        "load_us": _microseconds(event.load_s),
        "ttft_us": None if event.ttft_s is None else _microseconds(event.ttft_s),
        "total_us": _microseconds(event.total_s),
        "prompt_tokens": event.prompt_tokens,
        "cached_tokens": event.cached_tokens,
        "completion_tokens": event.completion_tokens,
        "reasoning_tokens": event.reasoning_tokens,
        "prompt_price": event.prompt_price,
        "cached_prompt_price": event.cached_prompt_price,
        "output_price": event.output_price,
        "cost": amount(event.cost),
        "cost_pico": event.cost,
        "currency": settings.CURRENCY,
        "finish_reason": event.finish_reason,
    }


def _version(event: UsageEvent) -> AdapterVersion | None:
    try:
        return event.version
    except AdapterVersion.DoesNotExist:  # deleted: the event outlives it
        return None


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def differences(receipt: Mapping[str, Any], event: UsageEvent) -> list[str]:
    """The fields in which a receipt says another thing than the ledger."""
    told, receipt = describe(event), OF_THE_FIRST | receipt
    if _version(event) is None:
        told |= {name: receipt.get(name) for name in OF_THE_VERSION}
    return sorted(
        name for name in told.keys() | receipt.keys() if told.get(name) != receipt.get(name)
    )
