"""Addresses with a slash too many or too few."""

from __future__ import annotations

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ("/t/acme/keys/", "/t/acme/keys"),
        ("/t/acme/keys///?a=1&b=2", "/t/acme/keys?a=1&b=2"),
        ("/t/acme", "/t/acme/"),
        ("/account/login", "/account/login/"),
    ],
)
def test_a_slash_too_many_or_too_few_is_mended(client: Client, asked: str, where: str) -> None:
    answer = client.get(asked)
    assert (answer.status_code, answer["Location"]) == (301, where)


@pytest.mark.parametrize("asked", ["/nothing/", "/nothing", "/t/acme/keys/a/"])
def test_what_there_is_not_stays_so(client: Client, asked: str) -> None:
    assert client.get(asked).status_code == 404
