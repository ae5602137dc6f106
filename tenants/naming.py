"""The forms of keys and names, and words of stored rows, that both planes know.

The models use them, and so does the token path, which asks the database without the models.
"""

from __future__ import annotations

import hmac
import re
from datetime import timedelta

from django.conf import settings

PREFIX_LENGTH = 12
SECRET_LENGTH = 43
"""43 characters of 62 kinds: 256 bits."""
KEY_FORM = re.compile(rf"lk_([A-Za-z0-9]{{{PREFIX_LENGTH}}})_[A-Za-z0-9]{{{SECRET_LENGTH}}}")
ENGINE_FORM = re.compile(rf"le_([A-Za-z0-9]{{{PREFIX_LENGTH}}})_[A-Za-z0-9]{{{SECRET_LENGTH}}}")
PLAYGROUND = "play-"
"""Begins the prefixes of a tenant's playground key and of its members'. No text has such a prefix,
so nobody can show these keys: they only give what is generated in the playground limits, and what
each member generates a line of usage."""
TOUCH_INTERVAL = timedelta(minutes=1)
"""`last_used_at` of a key is written at most this often."""
INFERENCE = "inference"
"""The scope of keys that may infer."""
REQUEST, RESPONSE, CONVERSATION = "request", "response", "conversation"
"""What content is kept of: a request, a response of the Responses API, and a conversation that
responses go on from; by its id each."""
ACTIVE = "active"
"""The status of a tenant that is not suspended."""
ISOLATION_TENANTS = ("lorikeet-isolation-a", "lorikeet-isolation-b")
"""The platform's own, by which it checks that tenants are kept apart (`tenants.isolation`)."""
LIVE = "live"
"""The alias that a name without `@` means."""


def prefix_of(secret: str) -> str | None:
    """The lookup prefix of a key's text, None where it does not have a key's form."""
    found = KEY_FORM.fullmatch(secret)
    return found[1] if found else None


def engine_prefix_of(secret: str) -> str | None:
    """The same of an engine's credential."""
    found = ENGINE_FORM.fullmatch(secret)
    return found[1] if found else None


def playground_prefix(tenant_id: int) -> str:
    """The prefix of the tenant's playground key; in hexadecimal to fit."""
    return f"{PLAYGROUND}{tenant_id:0{PREFIX_LENGTH - len(PLAYGROUND)}x}"


def hmac_of(secret: str) -> bytes:
    """What is stored of a key: HMAC-SHA256 under the pepper, useless without it."""
    return hmac.digest(settings.KEY_PEPPER.encode(), secret.encode(), "sha256")


def cache_salt(secret: bytes, tenant_id: int) -> str:
    """HMAC-SHA256 (hex) of the tenant under its cache secret: no tenant can work out another's."""
    return hmac.digest(secret, f"prefix-cache:{tenant_id}".encode(), "sha256").hex()


def lora_name(tenant: str, adapter: str, digest: str) -> str:
    """vLLM's LoRA name of an adapter version."""
    return f"{tenant}/{adapter}@{digest}"
