"""Signed receipts: one request's ledger event, which anyone with the public key can verify.

A receipt is a JSON object:

    {"object": "usage.receipt", "receipt": {...}, "jws": "eyJ..."}

`jws` is a JWS in compact form (RFC 7515) with EdDSA over Ed25519 (RFC 8037), which any JOSE library
verifies with the keys at `/v1/usage/receipts/jwks.json`. Its payload is the value of `receipt`, its
header has the `typ` TYPE and, as `kid`, the first 16 hexadecimal digits of the SHA-256 of the 32
bytes of the public key. All numbers are integers, so nothing depends on how a language reads a
float.

The private key is derived from the setting RECEIPT_KEY: HKDF-SHA256 of its UTF-8 bytes without a
salt, with INFO, is Ed25519's 32-byte seed. After a change of RECEIPT_KEY new receipts get another
`kid`; the old ones are still verified with the old public key, so keep it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC
from functools import lru_cache
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from jwt import PyJWK, PyJWS
from jwt.algorithms import OKPAlgorithm
from jwt.exceptions import PyJWTError

from tenants.adapters.checks.strict_json import BadJson, load_object
from tenants.billing.money import amount
from tenants.models import AdapterVersion, UsageEvent

ALGORITHM = "EdDSA"
TYPE = "lorikeet-receipt+json"
"""Names the kind of document, so that no other document signed by this key passes for a receipt."""
FORMAT = "lorikeet-receipt-1"
INFO = b"lorikeet usage receipts, Ed25519, 1"
KEY_ID_DIGITS = 16
HEX_KEY = re.compile(r"[0-9A-Fa-f]{64}")
OF_THE_VERSION = frozenset({"adapter_version", "adapter_digest"})
"""Known only as long as the adapter's version exists; the event itself keeps its adapter's name."""
OF_OLDER: dict[str, Any] = {"is_estimated": False}
"""Fields that the first receipts did not have, with what those meant."""


class InvalidReceipt(ValueError):
    """It is not a receipt, or this key did not sign it; the message says why."""


class InvalidPublicKey(ValueError):
    """It is not an Ed25519 public key in a known form."""


def canonical(receipt: Mapping[str, Any]) -> bytes:
    """A receipt as one line of JSON (RFC 8785), whose bytes are signed.

    Raises:
        ValueError: it holds a value that JSON cannot express.
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
    def parse(cls, text: str) -> list[PublicKey]:
        """The keys of a PEM, of 64 hexadecimal digits, of a JWK or of a JWK set.

        Raises:
            InvalidPublicKey: it is none of them, or a key of another kind.
        """
        text = text.strip()
        if HEX_KEY.fullmatch(text):
            return [cls(bytes.fromhex(text))]
        if text.startswith("{"):
            return cls._of_json(text)
        try:
            return [cls._of(serialization.load_pem_public_key(text.encode()))]
        except (ValueError, UnsupportedAlgorithm) as error:
            if isinstance(error, InvalidPublicKey):
                raise
            raise InvalidPublicKey("it is neither PEM, 64 hexadecimal digits nor a JWK") from error

    @classmethod
    def _of_json(cls, text: str) -> list[PublicKey]:
        try:
            found = load_object(text.encode())
            keys = found.get("keys", [found])
            return [cls._of(PyJWK.from_dict(key, ALGORITHM).key) for key in keys]
        except (BadJson, PyJWTError, TypeError, AttributeError) as error:
            raise InvalidPublicKey(f"it is not a JWK or JWK set: {error}") from error

    @classmethod
    def _of(cls, key: object) -> PublicKey:
        if not isinstance(key, Ed25519PublicKey):
            raise InvalidPublicKey("it is not an Ed25519 public key")
        return cls(key.public_bytes_raw())

    @property
    def id(self) -> str:
        return hashlib.sha256(self.raw).hexdigest()[:KEY_ID_DIGITS]

    @property
    def key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.raw)

    @property
    def pem(self) -> str:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.key.public_bytes(serialization.Encoding.PEM, form).decode()

    @property
    def jwk(self) -> dict[str, Any]:
        """The key in the format of RFC 8037."""
        jwk: dict[str, Any] = OKPAlgorithm.to_jwk(self.key, as_dict=True)
        return jwk | {"kid": self.id, "alg": ALGORITHM, "use": "sig"}


def verify(
    signed: Mapping[str, Any],
    keys: Collection[PublicKey],
    *,
    type: str = TYPE,
    format: str = FORMAT,
) -> Mapping[str, Any]:
    """The signed part of a receipt, or of another kind of document that this key signs.

    Raises:
        InvalidReceipt: it is not a receipt, or none of the keys signed it in this form.
    """
    if not isinstance(jws := signed.get("jws"), str):
        raise InvalidReceipt("it is not a receipt: it has no `jws`")
    receipt = _verify_jws(jws, keys, type, format)
    if signed.get("receipt", receipt) != receipt:
        raise InvalidReceipt("`receipt` differs from the payload of `jws`")
    return receipt


def _verify_jws(jws: str, keys: Collection[PublicKey], type: str, format: str) -> Mapping[str, Any]:
    try:
        header = PyJWS().get_unverified_header(jws)
        if header.get("typ") != type:
            raise InvalidReceipt(f"its type is not {type}")
        key = _named(header.get("kid"), keys)
        receipt = load_object(PyJWS().decode(jws, key.key, algorithms=[ALGORITHM]))
    except (PyJWTError, BadJson) as error:
        raise InvalidReceipt("the signature does not match the receipt") from error
    if receipt.get("format") != format:
        raise InvalidReceipt(f"it is not a receipt of the format {format}")
    return receipt


def _named(key_id: object, keys: Collection[PublicKey]) -> PublicKey:
    for key in keys:
        if key.id == key_id:
            return key
    known = ", ".join(repr(key.id) for key in keys)
    raise InvalidReceipt(f"it names the key {str(key_id)[:64]!r}, but the given keys are {known}")


class Signer:
    """Signs receipts with a key that is derived from a secret."""

    def __init__(self, secret: str) -> None:
        seed = HKDF(hashes.SHA256(), 32, salt=None, info=INFO).derive(secret.encode())
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, receipt: Mapping[str, Any]) -> dict[str, Any]:
        """The receipt with its signature, as it is issued."""
        jws = self.jws(TYPE, receipt)
        return {"object": "usage.receipt", "receipt": dict(receipt), "jws": jws}

    def jws(self, type: str, payload: Mapping[str, Any]) -> str:
        """A JWS of `payload`. Each kind of document signed by this key must have its own `type`."""
        headers = {"typ": type, "kid": self.public_key.id}
        return PyJWS().encode(canonical(payload), self._key, ALGORITHM, headers=headers)


_signer = lru_cache(maxsize=1)(Signer)


def signer() -> Signer:
    """The signer of this installation."""
    return _signer(settings.RECEIPT_KEY)


def describe(event: UsageEvent) -> dict[str, Any]:
    """The content of an event's receipt. Reads the event's `tenant` and `version`: select these
    with the events if there are many.

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
        "is_estimated": event.is_estimated,
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
    """The fields in which a receipt differs from the ledger."""
    expected, receipt = describe(event), {**OF_OLDER, **receipt}
    if _version(event) is None:
        expected |= {name: receipt.get(name) for name in OF_THE_VERSION}
    return sorted(
        name for name in expected.keys() | receipt.keys() if expected.get(name) != receipt.get(name)
    )
