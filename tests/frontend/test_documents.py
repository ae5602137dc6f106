"""The documentation in the console: every document, its links, and who may read it."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.test import Client

from frontend import documents
from tenants.models import Tenant
from tests.frontend.clients import client_of

pytestmark = pytest.mark.django_db
HREF = re.compile(r'href="([^"]+)"')


@pytest.fixture
def viewer(tenant: Tenant) -> Client:
    return client_of(tenant, "viewer")


def test_every_document_is_listed() -> None:
    assert {file.stem for file in settings.DOCUMENTS.glob("*.md")} == set(documents.names())


@pytest.mark.parametrize("name", documents.names())
def test_a_document_is_a_page_whose_links_lead_somewhere(viewer: Client, name: str) -> None:
    page = viewer.get(documents.address(name))
    assert page.status_code == 200
    shown = page.context["document"]
    assert f"<title>{shown.title} · Documentation" in page.text
    assert " style=" not in shown.html and "<h1" in shown.html
    for href in HREF.findall(shown.html):
        place = href.removeprefix("/documentation/") if href.startswith("/") else f"{name}{href}"
        if not href.startswith("https://"):
            assert documents.address(place), href


def test_pictures_are_served_from_here(viewer: Client) -> None:
    assert '<img src="/static/documents/usage' in viewer.get(documents.address("bill")).text


def test_documents_require_sign_in(viewer: Client) -> None:
    answer = Client().get(documents.address())
    assert answer.status_code == 302 and "/account/login/" in answer.headers["Location"]
    assert viewer.get("/documentation/nothing").status_code == 404
    assert viewer.get("/documentation/..%2Fpyproject").status_code == 404


@pytest.mark.parametrize("place", ["nothing", "bill#nothing", "../README"])
def test_a_link_to_no_place_is_an_error(place: str) -> None:
    with pytest.raises(KeyError):
        documents.address(place)


def test_a_page_links_its_document(viewer: Client, tenant: Tenant) -> None:
    page = viewer.get(f"/t/{tenant.slug}/keys").text
    assert 'href="/documentation/keys-and-limits#keys" target="_blank" rel="noopener"' in page
