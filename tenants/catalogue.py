"""What model names mean for one tenant. Pure: `auth` reads the rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inference.errors import UnknownModel
from inference.grants import Grant, ModelCard, Target
from inference.wire import AdapterRef
from tenants.models.adapters import LIVE, lora_name

DIGEST_PREFIX = re.compile(r"[0-9a-f]{8,64}")


SHOWN_CHARS = 200
"""How much of an unknown name an error repeats."""


@dataclass(frozen=True, slots=True)
class BaseRow:
    """A base model; `created` is a unix time in seconds."""

    name: str
    created: int


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version that is ready, and the aliases that point at it."""

    adapter: str
    base_model: str
    created: int
    id: int
    number: int
    digest: str
    aliases: list[str]


def unknown(name: str, why: str = "") -> UnknownModel:
    """One answer for what does not exist and for what is another tenant's."""
    shown = name if len(name) <= SHOWN_CHARS else f"{name[:SHOWN_CHARS]}…"
    message = f"The model `{shown}` does not exist or you do not have access to it."
    return UnknownModel(f"{message} {why}".rstrip(), param="model")


class Catalogue:
    """The ready adapter versions of one tenant."""

    def __init__(self, rows: Iterable[VersionRow]) -> None:
        found: defaultdict[str, list[VersionRow]] = defaultdict(list)
        for row in rows:
            found[row.adapter].append(row)
        self._versions: Mapping[str, list[VersionRow]] = dict(found)

    def find(self, name: str) -> VersionRow:
        """The version that a name means.

        `adapter` is its live version; `adapter@3`, `adapter@<alias>` and `adapter@<digest prefix>`
        (8 hexadecimal digits or more) pin one.

        Raises:
            UnknownModel: none is meant, or more than one.
        """
        adapter, at, pin = name.partition("@")
        versions = self._versions.get(adapter, [])
        if not at:
            found = [row for row in versions if LIVE in row.aliases]
        else:
            found = _pinned(versions, pin)
        if len(found) > 1:
            raise unknown(
                name, f"`{pin}` is the beginning of {len(found)} digests: write more of it."
            )
        if not found:
            raise unknown(name)
        return found[0]

    def live(self) -> list[VersionRow]:
        """The version that each adapter's name means, where it means one."""
        return [row for rows in self._versions.values() for row in rows if LIVE in row.aliases]


def _pinned(versions: list[VersionRow], pin: str) -> list[VersionRow]:
    by_number = [row for row in versions if str(row.number) == pin]
    by_alias = [row for row in versions if pin in row.aliases]
    if by_number or by_alias or not DIGEST_PREFIX.fullmatch(pin):
        return by_number or by_alias
    return [row for row in versions if row.digest.startswith(pin)]


def allowed(grant: Grant, name: str) -> bool:
    """Whether the key's allow-list has this name, which is one without a version."""
    return grant.models is None or name in grant.models


def resolve(grant: Grant, name: str, bases: Mapping[str, BaseRow], own: Catalogue) -> Target:
    """What the name means for the grant. A base model's name comes before an adapter's.

    Raises:
        UnknownModel: it means nothing, or nothing that the key may use.
    """
    if not allowed(grant, name if name in bases else name.partition("@")[0]):
        raise unknown(name)
    if name in bases:
        return Target(name, name)
    row = own.find(name)
    ref = AdapterRef(lora_name(grant.tenant, row.adapter, row.digest), row.digest)
    return Target(name, row.base_model, ref, row.id)


def cards(grant: Grant, bases: Mapping[str, BaseRow], own: Catalogue) -> list[ModelCard]:
    """Every model that the key may use, by name."""
    found = {
        row.name: ModelCard(row.name, row.created, "lorikeet", row.name) for row in bases.values()
    }
    for row in own.live():
        card = ModelCard(row.adapter, row.created, grant.tenant, row.base_model)
        found.setdefault(row.adapter, card)
    return [found[name] for name in sorted(found) if allowed(grant, name)]
