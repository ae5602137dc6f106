"""How content is encrypted: AES-256-GCM with a key per tenant, which the master key encrypts.

Each text is bound to its place (tenant, kind and name): one that is moved elsewhere in the database
can't be decrypted there. Nonces are random, 96 bits; a tenant's key is good for 2**32 texts.

During a change of the master key there are two: keys that the previous one encrypted can still be
decrypted, until `rotation` has encrypted them anew.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

INFO = b"lorikeet content, master key, 1"
KEY_BYTES = 32
NONCE_BYTES = 12


class Unreadable(Exception):
    """The text was encrypted with another key or for another place, or was changed."""


class Location(NamedTuple):
    """Where a text is kept."""

    tenant_id: int
    kind: str
    name: str

    @property
    def bound(self) -> bytes:
        return f"{self.tenant_id}/{self.kind}/{self.name}".encode()


class TenantKey:
    """Encrypts and decrypts a tenant's content."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, location: Location, text: bytes) -> bytes:
        return _sealed(self._cipher, text, location.bound)

    def open(self, location: Location, sealed: bytes) -> bytes:
        """Raises Unreadable."""
        return _opened(self._cipher, sealed, location.bound)


def new_key(master: str, tenant_id: int) -> bytes:
    """A new key for the tenant, encrypted with the master key."""
    return _sealed(_master(master), secrets.token_bytes(KEY_BYTES), _bound(tenant_id))


def master_keys() -> list[str]:
    """The master keys of this installation, the one that encrypts first. Empty if no content can be
    kept."""
    return [key for key in (settings.CONTENT_KEY, settings.CONTENT_KEY_PREVIOUS) if key]


def tenant_key(masters: Sequence[str], tenant_id: int, wrapped: bytes) -> TenantKey:
    """The key that `new_key` made for this tenant with one of the master keys.

    Raises:
        Unreadable: it was made with none of them.
    """
    return TenantKey(_unwrapped(masters, tenant_id, wrapped))


def rewrapped(masters: Sequence[str], tenant_id: int, wrapped: bytes) -> bytes:
    """The same key, encrypted anew with the first of the master keys.

    Raises:
        Unreadable: none of them has encrypted it.
    """
    key = _unwrapped(masters, tenant_id, wrapped)
    return _sealed(_master(masters[0]), key, _bound(tenant_id))


def _unwrapped(masters: Sequence[str], tenant_id: int, wrapped: bytes) -> bytes:
    for master in masters:
        try:
            return _opened(_master(master), wrapped, _bound(tenant_id))
        except Unreadable:
            continue
    raise Unreadable


@lru_cache(maxsize=4)
def _master(secret: str) -> AESGCM:
    return AESGCM(HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=INFO).derive(secret.encode()))


def _bound(tenant_id: int) -> bytes:
    return f"key of {tenant_id}".encode()


def _sealed(cipher: AESGCM, text: bytes, bound: bytes) -> bytes:
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, text, bound)


def _opened(cipher: AESGCM, sealed: bytes, bound: bytes) -> bytes:
    try:
        return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound)
    except (InvalidTag, ValueError) as error:
        raise Unreadable from error
