"""The pages of adapters: the list, uploads, versions, aliases, and which roles may change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.files.storage import storages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from frontend.views.adapters.fingerprints import fingerprint
from frontend.views.adapters.versions import changes
from tenants.adapters.uploads import parts
from tenants.models import (
    Adapter,
    AdapterVersion,
    Alias,
    ApiKey,
    Membership,
    PromptSet,
    SetRun,
    State,
    Tenant,
    UploadSession,
)
from tenants.models.saved.votes import Run
from tests.adapters.working import unpacking
from tests.fleet.fake import FakeGateways
from tests.frontend.clients import client_of, user_of
from tests.frontend.every_page.test_lists import ways
from tests.storing import make_chunk, store_in, stored_files
from tests.tenants.making import (
    make_adapter,
    make_base,
    make_key,
    make_member,
    make_tenant,
    make_version,
)
from tests.tenants.refusing import met
from tests.tenants.spending import spend

MAX_QUERIES = 12
CONFIG = {"r": 8, "lora_alpha": 16, "use_rslora": False, "target_modules": ["q_proj", "v_proj"]}
PROBE = {
    "load_s": 0.25,
    "weight_bytes": 4096,
    "max_logprob_delta": 1.5,
    "finite": True,
    "base_text": "hello",
    "adapter_text": "<script>ahoy",
}
REPORT = {"findings": [], "findings_omitted": 0, "tensors": 16, "parameters": 4096, "probe": PROBE}


@pytest.fixture
def adapter(tenant: Tenant) -> Adapter:
    return make_adapter(tenant, "support")


@pytest.fixture
def ready(adapter: Adapter) -> AdapterVersion:
    """Version 1, ready and live."""
    version = make_version(adapter)
    AdapterVersion.objects.filter(pk=version.pk).update(config=CONFIG, report=REPORT)
    adapter.promote(version)
    version.refresh_from_db()
    return version


@pytest.fixture
def connected(gateways: FakeGateways) -> Callable[..., None]:
    """A function that sets the engines, with their resident adapters, that the gateways report."""

    def connect(**resident: list[str]) -> None:
        told = [{"id": id, "resident_adapters": names} for id, names in resident.items()]
        gateways.engines = told

    return connect


def url(tenant: Tenant, *parts: object) -> str:
    return "/".join([f"/t/{tenant.slug}/adapters", *map(str, parts)])


def pages(tenant: Tenant) -> list[str]:
    """Every page of the adapter `support` and its version 1."""
    version = url(tenant, "support", "versions", 1)
    return [url(tenant), url(tenant, "support", ""), version]


def text(response: Any) -> str:
    body: str = response.content.decode()
    return body


# --- Who sees what -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["owner", "admin", "developer", "viewer", "operator"])
def test_members_and_operators_see_each_page(
    tenant: Tenant, ready: AdapterVersion, role: str
) -> None:
    client = client_of(tenant, role)
    assert [client.get(page).status_code for page in pages(tenant)] == [200] * 3


def test_strangers_do_not(tenant: Tenant, ready: AdapterVersion) -> None:
    outsider, nobody = client_of(tenant, "outsider"), client_of(tenant, "nobody")
    assert [outsider.get(page).status_code for page in pages(tenant)] == [404] * 3
    assert [nobody.get(page).status_code for page in pages(tenant)] == [302] * 3


ACTIONS = {
    "promote": {"version": "1", "alias": "staging"},
    "delete": {},
    "aliases/live/roll-back": {},
    "aliases/live/delete": {},
    "versions/1/archive": {},
    "versions/1/delete": {},
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 302), ("admin", 302), ("developer", 302), ("operator", 302), ("viewer", 403),
     ("outsider", 404)],
)  # fmt: skip
def test_changes_take_a_developer(
    tenant: Tenant, ready: AdapterVersion, action: str, role: str, status: int
) -> None:
    client = client_of(tenant, role)
    assert client.get(url(tenant, "support", action)).status_code == 405
    assert client.post(url(tenant, "support", action), ACTIONS[action]).status_code == status


@pytest.mark.parametrize("action", ACTIONS)
def test_adapters_of_another_tenant_are_not_found(
    tenant: Tenant, ready: AdapterVersion, action: str
) -> None:
    other = make_tenant()
    client = client_of(other, "owner")
    assert client.post(url(other, "support", action), ACTIONS[action]).status_code == 404
    assert client.get(url(other, "support", "versions", 1)).status_code == 404


def test_only_who_may_change_is_offered_it(tenant: Tenant, ready: AdapterVersion) -> None:
    offers = ('id="upload"', 'id="promote"', "Roll back", "/archive")
    viewer, developer = client_of(tenant, "viewer"), client_of(tenant, "developer")
    seen = "".join(text(viewer.get(page)) for page in pages(tenant))
    assert not any(offer in seen for offer in offers)
    assert 'id="upload"' in text(developer.get(url(tenant)))
    assert 'id="promote"' in text(developer.get(url(tenant, "support", "")))
    assert "/pin" not in text(developer.get(url(tenant, "support", "")))


def test_operators_pin(tenant: Tenant, adapter: Adapter) -> None:
    where = url(tenant, "support", "pin")
    assert client_of(tenant, "owner").post(where, {"pinned": "yes"}).status_code == 403
    operator = client_of(tenant, "operator")
    assert "no longer" not in text(operator.post(where, {"pinned": "yes"}, follow=True))
    adapter.refresh_from_db()
    assert adapter.pinned
    operator.post(where, {"pinned": "no"})
    adapter.refresh_from_db()
    assert not adapter.pinned


# --- The list ------------------------------------------------------------------------------------


def listed(client: Client, tenant: Tenant, **query: str) -> list[str]:
    return [row.adapter.name for row in client.get(url(tenant), query).context["rows"]]


def test_the_list_shows_the_newest_and_the_live_version(
    tenant: Tenant, ready: AdapterVersion
) -> None:
    reason = "rank 128 is above <b>64</b>"
    rejected = make_version(ready.adapter, state=State.REJECTED)
    rejected.report = {"findings": [{"code": "rank", "message": reason}]}
    rejected.save()
    page = client_of(tenant, "viewer").get(url(tenant))
    (row,) = page.context["rows"]
    assert (row.newest.number, row.newest.state, row.live) == (2, "rejected", 1)
    assert row.updated == rejected.created_at
    assert row.rejected == reason and "@2: rank 128 is above &lt;b&gt;64" in text(page)


def test_the_list_is_filtered_in_the_address(tenant: Tenant) -> None:
    for name in ("a06", "a07", "a08"):
        make_adapter(tenant, name)
    make_adapter(make_tenant(), "a-foreign")
    make_version(Adapter.objects.get(name="a07"), state=State.PROBING)
    client = client_of(tenant, "viewer")
    assert listed(client, tenant, q="07") == ["a07"]
    assert listed(client, tenant, state="probing") == ["a07"]
    assert listed(client, tenant, state="ready") == []
    assert listed(client, tenant, state="nonsense", q="\0") == ["a07", "a06", "a08"]
    assert "No adapter matches" in text(client.get(url(tenant), {"q": "zzz"}))


def test_the_list_is_sorted_in_the_address(tenant: Tenant, key: ApiKey) -> None:
    client = client_of(tenant, "viewer")
    for name, state in (
        ("a", State.REJECTED), ("b", State.ARCHIVED), ("c", None), ("d", State.PROBING),
        ("e", State.READY), ("f", State.READY), ("g", State.READY),
    ):  # fmt: skip
        adapter = make_adapter(tenant, name)
        version = make_version(adapter, state=state) if state else None
        if version and name in "fg":
            adapter.promote(version)
    make_version(Adapter.objects.get(name="g"), state=State.REJECTED)
    assert listed(client, tenant) == list("fgedcab")
    assert listed(client, tenant, sort="-state", state="rejected") == list("ag")
    assert listed(client, tenant, sort="name") == list("abcdefg")
    assert listed(client, tenant, sort="-updated") == list("gfedcba")
    Adapter.objects.get(name="e").promote(AdapterVersion.objects.get(adapter__name="e"))
    assert listed(client, tenant, sort="-updated") == list("egfdcba")
    met(key, timezone.now(), requests=3, adapter="c")
    met(key, timezone.now() - timedelta(hours=2), requests=2, adapter="d")
    met(make_key(make_tenant())[0], timezone.now(), requests=9, adapter="a")
    assert listed(client, tenant, sort="-requests") == list("cdabefg")


@pytest.mark.parametrize("sort", ["", "-name", "updated", "-requests"])
def test_pages_keep_the_order_and_the_filter(tenant: Tenant, sort: str) -> None:
    base = make_base()
    names = {f"a{number:03}" for number in range(101)}
    Adapter.objects.bulk_create(Adapter(tenant=tenant, name=n, base_model=base) for n in names)
    make_adapter(tenant, "other")
    client, seen = client_of(tenant, "viewer"), []
    where: str | None = f"?sort={sort}&q=a"
    while where:
        page = client.get(url(tenant) + where)
        seen += [row.adapter.name for row in page.context["rows"]]
        where = ways(page).get("Next")
    assert len(seen) == 101 and set(seen) == names


def test_an_empty_list_offers_the_upload(tenant: Tenant) -> None:
    page = text(client_of(tenant, "developer").get(url(tenant)))
    assert "No adapters yet" in page and "No adapter matches" not in page


def test_the_base_model_is_asked_for_where_there_are_several(tenant: Tenant) -> None:
    make_base("one")
    client = client_of(tenant, "developer")
    assert 'name="base_model"' not in text(client.get(url(tenant)))
    make_base("two")
    assert 'name="base_model"' in text(client.get(url(tenant)))


def test_pages_take_few_queries(
    tenant: Tenant,
    ready: AdapterVersion,
    gateways: FakeGateways,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for number in range(30):
        make_version(ready.adapter)
        make_version(make_adapter(tenant, f"adapter-{number}"))
    client = client_of(tenant, "operator")
    client.get(url(tenant))  # an operator's first visit is audited
    diff = url(tenant, "support", "versions", "2", "diff?with=1")
    for page in [*pages(tenant), diff]:
        with django_assert_max_num_queries(MAX_QUERIES + 1):  # one for the banner
            assert client.get(page).status_code == 200


# --- Uploads without JavaScript ------------------------------------------------------------------


@pytest.fixture
def folders(settings: Settings, tmp_path: Path) -> Path:
    """The folder of stored adapters and unfinished uploads."""
    store_in(settings, tmp_path)
    return tmp_path


@pytest.fixture
def worker(transactional_db: None) -> Iterator[None]:
    """A worker that unpacks uploads, for which the form waits."""
    with unpacking():
        yield


def sent(config: str = "{}", **fields: str) -> dict[str, Any]:
    """What the form sends: two files, and its fields."""
    files = [("adapter_config.json", config), ("adapter_model.safetensors", "weights")]
    return {
        "name": "dispatcher",
        "files": [SimpleUploadedFile(name, text.encode()) for name, text in files],
        **fields,
    }


@pytest.mark.parametrize(
    ("role", "seen", "posted"),
    [("owner", 200, 302), ("admin", 200, 302), ("developer", 200, 302), ("operator", 200, 302),
     ("viewer", 403, 403), ("outsider", 404, 404), ("nobody", 302, 302)],
)  # fmt: skip
def test_the_upload_form_takes_a_developer(
    worker: None, tenant: Tenant, folders: Path, role: str, seen: int, posted: int
) -> None:
    make_base()
    client = client_of(tenant, role)
    page = client.get(url(tenant, "upload"), {"name": "support"})
    assert page.status_code == seen
    if seen == 200:
        assert '<dialog id="upload" aria-labelledby="upload-title" open>' in text(page)
        assert 'value="support"' in text(page)
    assert client.post(url(tenant, "upload"), sent()).status_code == posted
    assert AdapterVersion.objects.count() == (seen == 200)


def test_the_form_makes_a_version_once(worker: None, tenant: Tenant, folders: Path) -> None:
    make_base()
    client = client_of(tenant, "developer")
    first = client.post(url(tenant, "upload"), sent())
    assert first["Location"] == url(tenant, "dispatcher", "versions", 1)
    again = client.post(url(tenant, "upload"), sent())
    assert again["Location"] == url(tenant, "dispatcher", "versions", "1?known")
    version = AdapterVersion.objects.get()
    assert (version.state, version.created_by) == (State.VALIDATING, Membership.objects.get().user)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "Upper"}, "Lower-case letters"),
        ({"name": ""}, "cannot be blank"),
        ({"files": []}, "adapter_config.json is missing"),
        ({"base_model": "none"}, "base model &#x27;none&#x27; does not exist. Available: base."),
    ],
)
def test_the_form_says_what_is_wrong(
    tenant: Tenant, folders: Path, fields: dict[str, Any], reason: str
) -> None:
    make_base()
    page = client_of(tenant, "developer").post(url(tenant, "upload"), sent() | fields)
    assert page.status_code == 422
    assert reason in text(page) and f'value="{fields.get("name", "dispatcher")}"' in text(page)
    assert not Adapter.objects.exists()


def test_the_form_takes_no_more_than_the_limit(
    tenant: Tenant, folders: Path, settings: Settings
) -> None:
    settings.MAX_ADAPTER_BYTES = 5
    page = client_of(tenant, "developer").post(url(tenant, "upload"), sent())
    assert page.status_code == 422
    assert "exceeds this server&#x27;s limit of 5\u00a0bytes" in text(page)
    assert not Adapter.objects.exists()


def test_the_form_says_where_a_worker_takes_longer(
    transactional_db: None, tenant: Tenant, folders: Path, settings: Settings
) -> None:
    make_base()
    settings.UPLOAD_WAIT_S = 0
    client = client_of(tenant, "developer")
    page = text(client.post(url(tenant, "upload"), sent(), follow=True))
    assert "The upload to dispatcher is being checked." in page
    assert "adapter_model.safetensors, being checked" in page
    assert not Adapter.objects.exists()


def test_the_form_shows_why_a_worker_refused_the_upload(
    worker: None, tenant: Tenant, folders: Path
) -> None:
    make_base()
    fields = sent() | {"files": [SimpleUploadedFile("a.tar", b"no archive")]}
    page = client_of(tenant, "developer").post(url(tenant, "upload"), fields)
    assert page.status_code == 422
    assert "The archive is damaged" in text(page) and "(archive_invalid)" in text(page)
    assert not Adapter.objects.exists()


def test_the_form_needs_its_token(worker: None, tenant: Tenant, folders: Path) -> None:
    make_base()
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_member(tenant, "owner"))
    assert client.post(url(tenant, "upload"), sent()).status_code == 403
    assert not Adapter.objects.exists()
    page = client.get(url(tenant, "upload"))
    fields = sent(csrfmiddlewaretoken=str(page.context["csrf_token"]))
    assert client.post(url(tenant, "upload"), fields).status_code == 302


# --- Uploads that broke off ----------------------------------------------------------------------


@pytest.fixture
def unfinished(tenant: Tenant, folders: Path) -> UploadSession:
    session: UploadSession = tenant.uploads.create(
        adapter_name="dispatcher", file_name="dispatcher.tar", length_bytes=100
    )
    make_chunk(session, b"x" * 10)
    return session


def test_unfinished_uploads_are_shown_to_who_may_go_on(
    tenant: Tenant, unfinished: UploadSession
) -> None:
    tenant.uploads.create(adapter_name="old", file_name="old.tar", length_bytes=1, refusal={})
    page = text(client_of(tenant, "developer").get(url(tenant)))
    assert "Unfinished uploads" in page and "dispatcher.tar" in page and "old.tar" not in page
    for role in ("viewer", "developer"):
        other = tenant if role == "viewer" else make_tenant()
        assert "Unfinished" not in text(client_of(other, role).get(url(other)))


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 302), ("admin", 302), ("developer", 302), ("operator", 302), ("viewer", 403),
     ("outsider", 404)],
)  # fmt: skip
def test_an_unfinished_upload_is_discarded(
    tenant: Tenant, unfinished: UploadSession, role: str, status: int
) -> None:
    where = url(tenant, "uploads", unfinished.pk, "discard")
    assert client_of(tenant, role).post(where).status_code == status
    assert UploadSession.objects.exists() == (status != 302)
    assert bool(stored_files(storages[parts.PLACE])) == (status != 302)


def test_another_tenants_upload_is_not_discarded(unfinished: UploadSession) -> None:
    other = make_tenant()
    where = url(other, "uploads", unfinished.pk, "discard")
    assert client_of(other, "owner").post(where).status_code == 404
    assert stored_files(storages[parts.PLACE])


# --- Aliases -------------------------------------------------------------------------------------


def test_promote_and_roll_back(tenant: Tenant, ready: AdapterVersion) -> None:
    second = make_version(ready.adapter)
    client = client_of(tenant, "developer")
    body = {"version": second.number, "alias": "live"}
    page = text(client.post(url(tenant, "support", "promote"), body, follow=True))
    assert "points at version 2" in page and "Open streams stay" in page
    alias = Alias.objects.get()
    assert (alias.version, alias.previous) == (second, ready)
    back = url(tenant, "support", "aliases", "live", "roll-back")
    assert "back at version 1" in text(client.post(back, follow=True))
    alias.refresh_from_db()
    assert alias.version == ready
    assert "no earlier version" in text(client.post(back, follow=True))


def test_promoting_makes_an_alias_and_deleting_it_keeps_the_version(
    tenant: Tenant, ready: AdapterVersion
) -> None:
    client = client_of(tenant, "developer")
    client.post(url(tenant, "support", "promote"), {"version": "1", "alias": "staging"})
    assert Alias.objects.get(name="staging").version == ready
    client.post(url(tenant, "support", "aliases", "staging", "delete"))
    assert [alias.name for alias in Alias.objects.all()] == ["live"]
    assert AdapterVersion.objects.filter(pk=ready.pk).exists()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"version": "2", "alias": "live"}, "not a ready version"),
        ({"version": "99", "alias": "live"}, "not a ready version"),
        ({"version": "9" * 30, "alias": "live"}, "not a ready version"),
        ({"version": "one", "alias": "live"}, "not a ready version"),
        ({"version": "1", "alias": "Upper"}, "Lower-case letters"),
        ({"version": "1", "alias": "12"}, "must not look like a version number"),
        ({"version": "1", "alias": "x" * 64}, "at most 63"),
        ({"version": "1"}, "required"),
    ],
)
def test_a_promotion_that_cannot_be_says_why(
    tenant: Tenant, ready: AdapterVersion, body: dict[str, str], reason: str
) -> None:
    make_version(ready.adapter, state=State.REJECTED)
    page = client_of(tenant, "owner").post(url(tenant, "support", "promote"), body)
    assert page.status_code == 422
    assert reason in text(page) and 'id="promote" aria-labelledby="promote-title" open' in text(
        page
    )
    assert Alias.objects.get().version == ready


def test_an_adapter_goes_once_no_alias_points_at_it(tenant: Tenant, ready: AdapterVersion) -> None:
    client = client_of(tenant, "owner")
    refused = client.post(url(tenant, "support", "delete"), follow=True)
    assert "still points at a version" in text(refused)
    client.post(url(tenant, "support", "aliases", "live", "delete"))
    gone = client.post(url(tenant, "support", "delete"), follow=True)
    assert "is deleted" in text(gone)
    assert not Adapter.objects.exists()


# --- A version -----------------------------------------------------------------------------------


def test_a_version_tells_what_is_known_of_it(
    tenant: Tenant, ready: AdapterVersion, connected: Callable[..., None]
) -> None:
    other = f"{tenant.slug}/support@{'0' * 64}"
    connected(near=[ready.lora_name, other], far=[other])
    page = client_of(tenant, "viewer").get(url(tenant, "support", "versions", 1))
    assert page.context["engines"] == ["near"]
    assert page.context["names"] == ["support", "support@1", f"support@{ready.digest}"]
    body = text(page)
    assert "loaded on near" in body and "q_proj, v_proj" in body and "1.500 nats" in body
    assert "&lt;script&gt;ahoy" in body and "<script>ahoy" not in body
    connected()
    assert "cold" in text(client_of(tenant, "viewer").get(url(tenant, "support", "versions", 1)))


def test_a_rejected_version_says_exactly_why(tenant: Tenant, adapter: Adapter) -> None:
    version = make_version(adapter, state=State.REJECTED)
    finding = {"code": "rank_too_large", "message": "Rank 128 is above the limit of 64."}
    version.report = {"findings": [finding], "findings_omitted": 3}
    version.save()
    body = text(client_of(tenant, "viewer").get(url(tenant, "support", "versions", 1)))
    assert "Rank 128 is above the limit of 64." in body
    assert "rank_too_large" in body and "and 3 more" in body


def test_the_page_follows_the_checks(tenant: Tenant, adapter: Adapter) -> None:
    version = make_version(adapter, state=State.VALIDATING)
    client = client_of(tenant, "viewer")
    where = url(tenant, "support", "versions", 1)
    page = client.get(where)
    watched = f'topic="adapters" tenant="{tenant.slug}" every="1.0" seen="'
    assert watched + page.context["fingerprint"] in text(page)
    version.advance(State.PROBING, report={"waiting_for": "no engine is connected"})
    moved = client.get(where)
    assert "no engine is connected" in text(moved) and "is probing" in text(moved)
    version.become_ready(report=REPORT)
    ended = client.get(where)
    assert "is ready" in text(ended)
    assert len({shown.context["fingerprint"] for shown in (page, moved, ended)}) == 3


def test_a_version_in_use_is_neither_archived_nor_deleted(
    tenant: Tenant, ready: AdapterVersion
) -> None:
    client = client_of(tenant, "developer")
    for action in ("archive", "delete"):
        where = url(tenant, "support", "versions", 1, action)
        assert "An alias points at this version" in text(client.post(where, follow=True))
    ready.refresh_from_db()
    assert ready.state == State.READY


def test_a_version_that_is_not_in_use_is_archived_and_deleted(
    tenant: Tenant, adapter: Adapter
) -> None:
    version = make_version(adapter)
    client = client_of(tenant, "developer")
    where = url(tenant, "support", "versions", 1)
    assert "This version is archived" in text(client.post(f"{where}/archive", follow=True))
    version.refresh_from_db()
    assert version.state == State.ARCHIVED
    assert "is deleted" in text(client.post(f"{where}/delete", follow=True))
    assert client.get(where).status_code == 404


def test_a_version_that_is_being_checked_is_not_archived(tenant: Tenant, adapter: Adapter) -> None:
    make_version(adapter, state=State.PROBING)
    where = url(tenant, "support", "versions", 1, "archive")
    assert "cannot become archived" in text(client_of(tenant, "owner").post(where, follow=True))


def test_an_upload_of_known_content_is_told(tenant: Tenant, ready: AdapterVersion) -> None:
    client = client_of(tenant, "developer")
    where = url(tenant, "support", "versions", 1)
    assert "was uploaded before" in text(client.get(where, {"known": ""}))
    assert "was uploaded before" not in text(client.get(where))


# --- Differences ---------------------------------------------------------------------------------


def test_the_configurations_of_two_versions_are_compared(
    tenant: Tenant, ready: AdapterVersion
) -> None:
    second = make_version(ready.adapter)
    AdapterVersion.objects.filter(pk=second.pk).update(config={**CONFIG, "r": 16})
    client = client_of(tenant, "viewer")
    page = client.get(url(tenant, "support", "versions", 2, "diff"), {"with": "1"})
    assert page.context["changes"] == [("r", "8", "16")] and page.context["same"] == 3
    assert "Prompt set" not in text(page), "a viewer asks nothing"
    same = client.get(url(tenant, "support", "versions", 1, "diff"), {"with": "1"})
    assert "one and the same version" in text(same)
    AdapterVersion.objects.filter(pk=second.pk).update(config=CONFIG)
    alike = client.get(url(tenant, "support", "versions", 2, "diff"), {"with": "1"})
    assert "only the weights differ" in text(alike)


def test_the_answers_of_two_versions_are_compared_on_a_prompt_set(
    tenant: Tenant, ready: AdapterVersion
) -> None:
    make_version(ready.adapter)
    client = client_of(tenant, "developer")
    where = url(tenant, "support", "versions", 2, "diff")
    assert "Save prompt set" in text(client.get(where, {"with": "1"}))
    member = tenant.memberships.get(user=user_of(client))
    kept = PromptSet.objects.keep(member, "Refunds", prompts=["a", "b"], shared=False)
    page = client.get(where, {"with": "1"})
    assert f'<option value="{kept.pk}">Refunds (2 prompts)</option>' in text(page)
    assert "Votes" not in text(page)
    for compared in (["support@1", "support@2"], ["support@1", "base"]):
        run = Run(compared, ["B", "tie"])
        SetRun.objects.record(kept, member, uuid4(), run)
    page = client.get(where, {"with": "1"})
    assert [(one.model, one.wins, one.voted) for one in page.context["scores"]] == [
        ("support@2", 1, 2), ("support@1", 0, 2),
    ]  # fmt: skip
    assert "1 (50%)" in text(page)
    other = client_of(tenant, "developer").get(where, {"with": "1"})
    assert other.context["scores"] == []
    models = "model=support@1&model=support@2"
    opened = client.get(f"/t/{tenant.slug}/playground?{models}&set={kept.pk}")
    assert f'data-set="{kept.pk}"' in text(opened)
    assert [one["model"] for one in opened.context["asked"]] == ["support@1", "support@2"]


@pytest.mark.parametrize("number", ["", "x", "-1", "2", "9" * 5000, "²"])
def test_there_is_no_such_version_to_compare_with(
    tenant: Tenant, ready: AdapterVersion, number: str
) -> None:
    where = url(tenant, "support", "versions", 1, "diff")
    assert client_of(tenant, "viewer").get(where, {"with": number}).status_code == 404


def test_changes_name_keys_that_only_one_side_has() -> None:
    old = {"r": 8, "modules": ["a", "b"], "same": 1}
    new = {"r": 8, "modules": ["a"], "same": 1, "use_rslora": True}
    assert changes(old, new) == [("modules", "a, b", "a"), ("use_rslora", "", "yes")]


def test_a_page_is_never_older_than_its_fingerprint(tenant: Tenant, admin: Client) -> None:
    """At whichever query it becomes ready: a page with a newer mark would never be told of it."""
    version = make_version(make_adapter(tenant))
    mine = AdapterVersion.objects.filter(pk=version.pk)
    for moment in range(20):
        mine.update(state="probing", report={"findings": []})
        left = iter(range(moment, -1000, -1))

        def judged(execute: Any, *query: Any, left: Any = left) -> Any:
            if next(left) == 0:
                mine.update(state="ready", report=REPORT)
            return execute(*query)

        with connection.execute_wrapper(judged):
            page = admin.get(f"/t/{tenant.slug}/adapters/support/versions/{version.number}")
        mine.update(state="ready", report=REPORT)  # if the page made fewer queries
        shown = page.context["version"].state
        assert shown == "ready" or page.context["fingerprint"] != fingerprint(tenant, version), (
            moment
        )


# --- Usage ---------------------------------------------------------------------------------------


def test_the_list_says_what_each_adapter_met(tenant: Tenant, admin: Client) -> None:
    now = timezone.now()
    key = make_key(tenant)[0]
    busy, past, idle = (make_adapter(tenant, name) for name in ("busy", "past", "idle"))
    for one in (busy, past, idle):
        one.promote(make_version(one))
    live = busy.versions.get()
    told: Any = {"adapter": "busy", "version": live}
    met(key, now, requests=30, bucket=4, **told)
    met(key, now - timedelta(hours=2), requests=9, bucket=4, **told)
    met(key, now, "failed", 1, code="engine_lost", **told)
    met(make_key(make_tenant())[0], now, requests=500, adapter="busy")
    spend(key, now - timedelta(days=40), adapter="past", model="past")
    rows = {row.adapter.name: row for row in admin.get(url(tenant)).context["rows"]}
    traffic = rows["busy"].traffic
    assert (traffic.requests, traffic.failed, traffic.errors) == (40, 1, "2.5%")
    assert traffic.last_used == "this hour" and traffic.p95_s is not None
    assert traffic.line.startswith("M0.0 26.0L") and traffic.line.count("L") == 23
    month = timezone.now() - timedelta(days=40)
    assert rows["past"].traffic.last_used == f"in {month:%B %Y}"
    assert rows["idle"].traffic.last_used == "never" and rows["idle"].traffic.requests == 0
    assert "?model=busy" in admin.get(url(tenant)).content.decode()


def test_a_version_is_shown_beside_the_one_before(tenant: Tenant, admin: Client) -> None:
    adapter, key, now = make_adapter(tenant), make_key(tenant)[0], timezone.now()
    first, rejected, second = (
        make_version(adapter, state=one) for one in (State.READY, State.REJECTED, State.READY)
    )
    AdapterVersion.objects.update(config=CONFIG)
    met(key, now, requests=99, bucket=4, adapter="support", version=first)
    met(key, now, "failed", 1, adapter="support", version=first)
    met(key, now, requests=96, bucket=6, adapter="support", version=second)
    met(key, now, "failed", 4, adapter="support", version=second)
    page = admin.get(url(tenant, "support", "versions", f"{second.number}"))
    told = {one.title: one for one in page.context["comparison"]}
    assert page.context["before"].number == first.number
    errors = told["Errors"]
    assert (errors.before, errors.now, errors.change) == ("1%", "4%", "+3 pt")
    assert errors.tone == told["TTFT p95"].tone == "bad"
    assert f"?model=support@{first.number}&amp;model=support@{second.number}" in (
        page.content.decode()
    )
    assert admin.get(url(tenant, "support", "versions", "1")).context["comparison"] == []
    rows = admin.get(url(tenant, "support", "")).context["versions"]
    assert [(row.version, row.traffic.requests) for row in rows] == [
        (second, 100), (rejected, 0), (first, 100)
    ]  # fmt: skip


def test_a_version_shows_how_its_answers_follow_schemas(tenant: Tenant, admin: Client) -> None:
    adapter, key = make_adapter(tenant), make_key(tenant)[0]
    first, second = make_version(adapter), make_version(adapter)
    AdapterVersion.objects.update(config=CONFIG)
    today = timezone.now()
    before = today - timedelta(days=2)
    met(key, today, requests=10, adapter="support", version=second, conformed=6, malformed=2)
    met(key, before, requests=9, adapter="support", version=second, unchecked=1, conformed=2)
    met(key, before, requests=8, adapter="support", version=first, conformed=8)
    met(make_key(make_tenant())[0], today, requests=5, adapter="support", malformed=5)
    page = admin.get(url(tenant, "support", "versions", f"{second.number}"))
    told = {one.title: one for one in page.context["comparison"]}["Malformed answers"]
    assert (told.before, told.now, told.tone) == ("0%", "20%", "bad")
    traffic = page.context["traffic"]
    assert (traffic.structure.conforming, traffic.structure.checked) == ("80%", 10)
    assert [(one.at.date(), one.conformed, one.malformed, one.unchecked, one.conforming)
            for one in traffic.structures] == [
        (before.date(), 2, 0, 1, "100%"), (today.date(), 6, 2, 0, "75%")
    ]  # fmt: skip
    assert "Answers with a schema" in page.content.decode()
    unused = make_version(adapter)
    page = admin.get(url(tenant, "support", "versions", f"{unused.number}"))
    assert "Answers with a schema" not in page.content.decode()


def test_what_is_live_is_not_offered_to_be_promoted(tenant: Tenant, admin: Client) -> None:
    adapter = make_adapter(tenant)
    live, other = make_version(adapter), make_version(adapter)
    adapter.promote(live)
    pages = [
        admin.get(f"/t/{tenant.slug}/adapters/{adapter.name}/versions/{one.number}").text
        for one in (live, other)
    ]
    assert ['data-opens="promote"' in page for page in pages] == [False, True]
