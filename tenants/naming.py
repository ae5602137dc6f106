"""Formats of keys and names, stored values, and times, that both planes use.

The models import them, and so does the token path, which queries the database without the models.
"""

from __future__ import annotations

import hmac
import re
from datetime import timedelta

from django.conf import settings

PREFIX_LENGTH = 12
SECRET_LENGTH = 43
"""43 characters from an alphabet of 62: 256 bits."""
KEY_FORM = re.compile(rf"lk_([A-Za-z0-9]{{{PREFIX_LENGTH}}})_[A-Za-z0-9]{{{SECRET_LENGTH}}}")
ENGINE_FORM = re.compile(rf"le_([A-Za-z0-9]{{{PREFIX_LENGTH}}})_[A-Za-z0-9]{{{SECRET_LENGTH}}}")
PLAYGROUND = "play-"
"""Start of the prefixes of a tenant's playground key and of its members' keys. No secret can have
such a prefix (it contains a hyphen), so no client can present these keys: they exist to give the
playground limits, and each member a line of usage."""
TOUCH_INTERVAL = timedelta(minutes=1)
"""`last_used_at` of a key is written at most this often."""
ALIVE_S = 10
"""How long after its last heartbeat, by the database's clock, a gateway counts as alive."""
HOUR, DAY, MONTH = "hour", "day", "month"
"""The spans that the ledger is summed over, as its rows name them."""
REQUEST, RESPONSE, CONVERSATION = "request", "response", "conversation"
"""What stored content belongs to, each by its id: a request, a response of the Responses API, or a
conversation that responses continue."""
ACTIVE = "active"
"""The status of a tenant that is not suspended."""
ISOLATION_TENANTS = ("lorikeet-isolation-a", "lorikeet-isolation-b")
"""The platform's own tenants, used by `tenants.isolation` to check that tenants are isolated."""
LIVE = "live"
"""The alias that an adapter's name without `@` refers to."""
TUNED = "ft:"
"""Start of a model's name as OpenAI forms those of fine-tuned ones."""


def prefix_of(secret: str) -> str | None:
    """The lookup prefix of a key's text; None if it is not in the format of a key."""
    found = KEY_FORM.fullmatch(secret)
    return found[1] if found else None


def engine_prefix_of(secret: str) -> str | None:
    """The lookup prefix of an engine's credential; None if it is not in that format."""
    found = ENGINE_FORM.fullmatch(secret)
    return found[1] if found else None


def playground_prefix(tenant_id: int) -> str:
    """The prefix of the tenant's playground key; the id is in hexadecimal to fit."""
    return f"{PLAYGROUND}{tenant_id:0{PREFIX_LENGTH - len(PLAYGROUND)}x}"


def hmac_of(secret: str) -> bytes:
    """The stored form of a key: HMAC-SHA256 under the pepper, useless without it."""
    return hmac.digest(settings.KEY_PEPPER.encode(), secret.encode(), "sha256")


def cache_salt(secret: bytes, tenant_id: int) -> str:
    """HMAC-SHA256 (hex) of the tenant under its cache secret: no tenant can derive another's."""
    return hmac.digest(secret, f"prefix-cache:{tenant_id}".encode(), "sha256").hex()


def lora_name(tenant: str, adapter: str, digest: str) -> str:
    """vLLM's LoRA name of an adapter version."""
    return f"{tenant}/{adapter}@{digest}"


def tuned_adapter(suffix: str, id: str) -> str:
    """The name of the adapter that a fine-tuning job makes; `id` is unique, without a hyphen."""
    return f"{suffix or 'ft'}-{id}"


def tuned_name(base: str, tenant: str, adapter: str) -> str:
    """The model's name of such an adapter in OpenAI's form, which requests may use too."""
    suffix, _, id = adapter.rpartition("-")
    return f"{TUNED}{base}:{tenant}:{suffix}:{id}"


def adapter_of(model: str) -> str:
    """The adapter's name, with its version if it has one, in the name of a model."""
    if not model.startswith(TUNED):
        return model
    return "-".join(model.split(":")[-2:])
