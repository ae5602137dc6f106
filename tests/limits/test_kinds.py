"""What can be declared as a kind of limit. No store, no event loop."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.limits.kinds import KINDS, LimitKind, table
from tests.environment import ROOT

pytestmark = pytest.mark.pure


def kind(name: str = "images_per_minute", **fields: Any) -> LimitKind:
    facts = {"window": "minute", "measure": "images", "label": "", "wording": "", "help": ""}
    return LimitKind(name, **(facts | fields))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"window": "day"}, "images_per_minute: the ledger does not sum images"),
        ({"window": "month", "measure": "requests"}, "does not sum requests"),
        ({"measure": "cost"}, "costs can only be limited by day or month"),
        ({"window": "concurrent"}, "only requests can be limited as concurrent"),
        ({"window": "day", "measure": "tokens", "header": "tokens"}, "with a sliding window"),
        ({"window": "concurrent", "measure": "requests", "header": "x"}, "with a sliding window"),
    ],
)
def test_an_inconsistent_kind_is_refused(fields: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        kind(**fields)


@pytest.mark.parametrize("other", [kind(), kind("tokens"), kind("other", header="images")])
def test_names_and_headers_are_unique(other: LimitKind) -> None:
    one = kind(header="images")
    if other.name == "tokens":
        assert list(table(one, other)) == ["images_per_minute", "tokens"]
    else:
        with pytest.raises(ValueError, match="the same name or header"):
            table(one, other)


def test_each_kind_is_documented() -> None:
    text = (ROOT / "docs" / "limits-and-bills.md").read_text()
    assert [name for name in KINDS if f"`{name}`" not in text] == []


def test_each_kind_says_what_pages_refusals_and_documents_need() -> None:
    for name, declared in KINDS.items():
        assert name == declared.name and name.isidentifier()
        assert declared.label and declared.wording and declared.help.endswith(".")
        assert declared.is_money == name.startswith("cost")
        assert declared.is_budget == name.endswith(("day", "month"))
