"""Fuzzes every operation of the management API, as a key and as a signed-in user."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from django.conf import settings as django_settings
from django.test import Client
from django.utils import timezone

from gateway.planes.headers import HeaderLimit
from tenants.adapters.uploads.guard import BodyGuard
from tenants.adapters.uploads.intake import UploadIntake
from tenants.models import (
    AdapterVersion,
    EngineCredential,
    Invitation,
    Membership,
    Notification,
    Price,
    QuarantinedEntry,
    Role,
    Scope,
    Target,
    Tenant,
)
from tenants.models.notifications import NotificationKind
from tests.fleet.fake import FakeGateways
from tests.labs.fuzz_api.fuzzing import Known, fuzz, in_time, operations, schema_of
from tests.labs.fuzz_api.in_process import URL, InProcess, console
from tests.storing import store_in
from tests.tenants.making import (
    make_adapter,
    make_key,
    make_member,
    make_rollout,
    make_user,
    make_version,
)
from tests.tenants.refusing import refuse
from tests.tenants.spending import spend

pytestmark = pytest.mark.django_db
PREFIX = "/api/v1/"
__all__ = ["in_time"]


@pytest.fixture
def known(live: AdapterVersion, tmp_path: Path, settings: Any, gateways: FakeGateways) -> Known:
    """The objects of the tenant acme, keyed by their place in paths and by parameter."""
    store_in(settings, tmp_path)
    settings.UPLOAD_WAIT_S = 0
    acme = live.adapter.tenant
    make_version(live.adapter)
    make_adapter(acme, "other")
    make_user("joiner")
    member = Membership.objects.get(user=make_member(acme, "viewer"))
    tomorrow = timezone.now() + timedelta(days=1)
    price = Price.objects.create(
        adapter=live.adapter, starts_at=tomorrow, prompt=2, cached_prompt=1, output=3
    )
    rollout = make_rollout(live.adapter.base_model)
    rollout.tenants.create(tenant=acme, turn="first")
    upload = acme.uploads.create(adapter_name="support", file_name="a.tar", length_bytes=10)
    key = make_key(acme)[0]
    invited, _ = Invitation.objects.invite(acme, role=Role.VIEWER, note="", by=None)
    credential, _ = EngineCredential.objects.issue(name="gpu-1")
    entry = QuarantinedEntry.objects.create(
        key="k", attempt=1, reason="unsigned", prompt_tokens=1, completion_tokens=1
    )
    webhooks = _webhooks(acme)
    return {
        "adapters/name": ["support", "other", "nothing"],
        "aliases/alias": ["live", "nothing"],
        "versions/number": [1, 2, 3],
        "keys/id": [key.pk],
        "requests/request_id": [refuse(key, timezone.now()).pk, spend(key, timezone.now()).pk],
        "invitations/id": [invited.pk],
        "engine-credentials/id": [credential.pk],
        "quarantine/id": [entry.pk],
        "webhooks/id": [one.pk for one in webhooks],
        "webhook-deliveries/id": [one.deliveries.get().pk for one in webhooks],
        "members/id": [member.pk],
        "prices/id": [price.pk],
        "uploads/id": [str(upload.pk)],
        "base-models/name": ["base"],
        "rollouts/id": [rollout.pk],
        "revisions/id": [rollout.revision_id],
        "tenants/slug": ["acme"],
        "tenant": ["acme", ""],
    }


def _webhooks(acme: Tenant) -> list[Target]:
    """A webhook of the tenant and one of the installation, each with a delivery."""
    made = []
    for whose, kind in (
        (acme, NotificationKind.ADAPTER_READY),
        (None, NotificationKind.ENGINE_LOST),
    ):
        made.append(Target.objects.add(whose, "https://hooks.example/", [kind.value], None))
        Notification.objects.post(kind, {}, tenant=whose)
    return made


@pytest.fixture(params=["key", "operator", "owner"])
def session(request: Any, tenant: Tenant) -> requests.Session:
    """A session that sends requests to the console in this process, with a key or signed in."""
    made = requests.Session()
    if request.param == "key":
        made.headers["Authorization"] = f"Bearer {make_key(tenant, *Scope.values)[1]}"
    else:
        client = Client()
        is_owner = request.param == "owner"
        client.force_login(
            make_member(tenant, "owner") if is_owner else make_user("operator", is_staff=True)
        )
        cookies = {name: morsel.value for name, morsel in client.cookies.items()}
        token = "t" * 32
        cookies[django_settings.CSRF_COOKIE_NAME] = token
        made.headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        made.headers["X-CSRFToken"] = token
    made.mount(URL, InProcess(HeaderLimit(BodyGuard(UploadIntake(console())))))
    return made


@pytest.mark.parametrize(
    ("method", "path"), operations(PREFIX), ids=lambda text: str(text).removeprefix(PREFIX)
)
def test_an_operation(method: str, path: str, known: Known, session: requests.Session) -> None:
    assert fuzz(schema_of(PREFIX, known)[path][method], session, URL) > 1
