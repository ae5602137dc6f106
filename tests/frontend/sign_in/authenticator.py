"""A passkey in software, which answers as a browser does."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from fido2.cose import ES256
from fido2.utils import websafe_decode, websafe_encode
from fido2.webauthn import (
    AttestationObject,
    AttestedCredentialData,
    AuthenticatorData,
    CollectedClientData,
)

FLAG = AuthenticatorData.FLAG
PRESENT = FLAG.UP | FLAG.UV


@dataclass
class Passkey:
    """Of one person at one host; answers at `origin`."""

    origin: str = "http://localhost"
    host: str = "localhost"
    id: bytes = b"a credential's id"
    user: bytes = b""
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def created(self, options: dict[str, Any]) -> str:
        """The answer to what a page asks for to add a passkey."""
        asked = options["publicKey"]
        self.user = websafe_decode(asked["user"]["id"])
        public = ES256.from_cryptography_key(self.key.public_key())
        data = AttestedCredentialData.create(b"\0" * 16, self.id, public)
        about = AuthenticatorData.create(self._host(), PRESENT | FLAG.AT, 0, data)
        response = {"attestationObject": _text(AttestationObject.create("none", about, {}))}
        return self._answer("webauthn.create", asked["challenge"], response)

    def presented(self, options: dict[str, Any], *, user: bytes | None = None) -> str:
        """The answer to what a page asks for to sign in; `user` says who it is to be."""
        challenge = options["publicKey"]["challenge"]
        about = AuthenticatorData.create(self._host(), PRESENT, 1)
        client = self._client("webauthn.get", challenge)
        signature = self.key.sign(bytes(about) + client.hash, ec.ECDSA(hashes.SHA256()))
        whose = websafe_encode(self.user if user is None else user)
        response = {
            "authenticatorData": _text(about),
            "signature": _text(signature),
            "userHandle": whose,
        }
        return self._answer("webauthn.get", challenge, response)

    def _host(self) -> bytes:
        return hashlib.sha256(self.host.encode()).digest()

    def _client(self, kind: str, challenge: str) -> CollectedClientData:
        return CollectedClientData.create(kind, websafe_decode(challenge), self.origin)

    def _answer(self, kind: str, challenge: str, response: dict[str, str]) -> str:
        said = {**response, "clientDataJSON": _text(self._client(kind, challenge))}
        return json.dumps({
            "id": _text(self.id), "rawId": _text(self.id), "type": "public-key", "response": said,
            "clientExtensionResults": {"credProps": {"rk": True}},
        })  # fmt: skip


def _text(raw: bytes) -> str:
    return websafe_encode(bytes(raw))
