"""What names mean, without a database."""

from __future__ import annotations

import pytest

from inference.errors import UnknownModel
from inference.grants import Grant
from inference.wire import AdapterRef
from tenants.catalogue import BaseRow, Catalogue, VersionRow, cards, resolve

OLD, NEW, TWIN = "ab" * 32, "cd" * 32, "cdcdcdcd" + "0" * 56
BASES = {"org/base": BaseRow("org/base", 1), "shadow": BaseRow("shadow", 1)}


def version(number: int, digest: str, *aliases: str, adapter: str = "support") -> VersionRow:
    return VersionRow(adapter, "org/base", 2, number, number, digest, list(aliases))


OWN = Catalogue(
    [
        version(3, OLD, "stable"),
        version(4, NEW, "live", "canary"),
        version(5, TWIN),
        version(7, "12345678" * 8, "live", adapter="digits"),
        version(9, "ee" * 32, adapter="sleeping"),
        version(8, "ff" * 32, "live", adapter="shadow"),
    ]
)


def grant(*models: str) -> Grant:
    allowed = frozenset(models) if models else None
    return Grant(1, 1, "acme", frozenset({"inference"}), allowed, 1.0, "salt")


@pytest.mark.parametrize(
    ("name", "version_id"),
    [
        ("support", 4),
        ("support@live", 4),
        ("support@canary", 4),
        ("support@stable", 3),
        ("support@3", 3),
        ("support@5", 5),
        ("support@" + OLD[:8], 3),
        ("support@" + OLD, 3),
        ("support@cdcdcdcdc", 4),
        ("sleeping@9", 9),
        ("digits@12345678", 7),  # not the number of a version, so it may be a digest
    ],
)
def test_a_name_means_a_version(name: str, version_id: int) -> None:
    target = resolve(grant(), name, BASES, OWN)
    assert (target.model, target.base_model, target.version_id) == (name, "org/base", version_id)


def test_the_lora_name_has_tenant_adapter_and_digest() -> None:
    assert resolve(grant(), "support@3", BASES, OWN).adapter == AdapterRef(
        f"acme/support@{OLD}", OLD
    )


@pytest.mark.parametrize("name", ["org/base", "shadow"])
def test_a_base_model_comes_before_an_adapter(name: str) -> None:
    target = resolve(grant(), name, BASES, OWN)
    assert (target.base_model, target.adapter, target.version_id) == (name, None, None)


@pytest.mark.parametrize(
    "name",
    "|@|nobody|support@|support@9|support@03|support@abababa|support@beta|sleeping"
    f"|support@{OLD.upper()}|support@{OLD}ab|support@live@3|org/base@3".split("|"),
)
def test_a_name_that_means_nothing(name: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        resolve(grant(), name, BASES, OWN)
    expected = f"The model `{name}` does not exist or you do not have access to it."
    assert caught.value.message == expected


def test_an_ambiguous_digest_says_so() -> None:
    with pytest.raises(UnknownModel, match="is the beginning of 2 digests"):
        resolve(grant(), "support@cdcdcdcd", BASES, OWN)


def test_the_allow_list_names_models_without_a_version() -> None:
    assert resolve(grant("support"), "support@3", BASES, OWN).version_id == 3
    assert resolve(grant("org/base"), "org/base", BASES, OWN).version_id is None
    for name in ("digits", "org/base"):
        with pytest.raises(UnknownModel, match="does not exist or you do not have access"):
            resolve(grant("support"), name, BASES, OWN)
    with pytest.raises(UnknownModel):
        resolve(grant("support@3"), "support@3", BASES, OWN)


def test_cards_are_what_a_key_may_use() -> None:
    found = cards(grant(), BASES, OWN)
    assert [card.id for card in found] == ["digits", "org/base", "shadow", "support"]
    assert [card.owned_by for card in found] == ["acme", "lorikeet", "lorikeet", "acme"]
    assert [card.id for card in cards(grant("support", "gone"), BASES, OWN)] == ["support"]
