"""What all lists have in common: filter, paging, and the dialogs of their rows."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from django.template import Context, Template
from django.urls import reverse

from tenants.models import ApiKey, Tenant
from tests.frontend.clients import client_of

OF_TENANT = ("adapters", "keys", "limits", "members", "playground-conversations")
OF_OPERATORS = ("operate_prices", "operate_tenants")
PAGER = re.compile(r'<div class="pager">(.*?)</div>')
LINK = re.compile(r'<a class="button" href="([^"]*)">([^<]*)</a>')


def ways(answer: Any) -> dict[str, str]:
    """The addresses of the pager's links, by their texts."""
    pager = PAGER.search(answer.content.decode())
    return {text: unescape(url) for url, text in LINK.findall(pager[1])} if pager else {}


def test_addresses_that_make_no_sense_are_answered(tenant: Tenant) -> None:
    client = client_of(tenant, "operator")
    for page in (*OF_TENANT, *OF_OPERATORS):
        url = reverse(page, args=[] if page in OF_OPERATORS else [tenant.slug])
        for query in ("q=%00", "q=a%00b", "after=%00", "before=9" + 40 * "9"):
            assert client.get(f"{url}?{query}").status_code == 200, (page, query)


def test_a_page_leads_on_and_back_within_its_filter(tenant: Tenant) -> None:
    for i in range(101):
        ApiKey.objects.issue(tenant, name=f"a&b {i:03}", scopes=["inference"])
    client, keys = client_of(tenant, "owner"), reverse("keys", args=[tenant.slug])
    first = client.get(keys, {"q": "a&b"})
    assert list(ways(first)) == ["Older"]
    second = client.get(keys + ways(first)["Older"])
    assert ways(second)["First page"] == "?q=a%26b"
    third = client.get(keys + ways(second)["Older"])
    assert [row.key.name for row in third.context["keys"]] == ["a&b 000"]
    assert list(ways(third)) == ["First page"]
    assert not ways(client.get(keys, {"q": "a&b 007"}))


def test_a_dialog_names_what_it_is_about_as_text() -> None:
    asked = '{% dialog "drop" "Drop {}?" name of=7 to="/x" %}{{ name }}{% enddialog %}'
    shown = Template("{% load lorikeet %}" + asked).render(
        Context({"name": "<b>{}", "csrf_token": "secret"})
    )
    assert (
        '<dialog id="drop-7" aria-labelledby="drop-7-title"><form method="post" action="/x">'
        in shown
    )
    assert "Drop &lt;b&gt;{}?</h2>&lt;b&gt;{}<div" in shown and 'value="secret"' in shown
