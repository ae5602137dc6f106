"""A tenant's choices, about malformed answers and overflow, reach the grants of its keys."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, transaction

from inference.interfaces.directory import Grant
from tenants.directory.reader import Reader
from tenants.models import Tenant
from tests.tenants.making import make_key, make_tenant


async def test_a_grant_has_its_tenants_choice(transactional_db: None) -> None:
    reader = Reader()
    await reader.open()
    tenant = await sync_to_async(make_tenant)("acme")
    key, _ = await sync_to_async(make_key)(tenant)
    try:
        for choice in ("never", "once"):
            await Tenant.objects.filter(pk=tenant.pk).aupdate(repair=choice)
            row = await reader.key(key.prefix)
            assert row is not None
            grant = row.verdict()
            assert isinstance(grant, Grant) and grant.repairs == (choice == "once")
    finally:
        await reader.close()


async def test_a_grant_says_whether_prompts_may_leave(transactional_db: None) -> None:
    reader = Reader()
    await reader.open()
    tenant = await sync_to_async(make_tenant)("acme")
    key, _ = await sync_to_async(make_key)(tenant)
    try:
        for allowed in (False, True):
            await Tenant.objects.filter(pk=tenant.pk).aupdate(overflow=allowed)
            row = await reader.key(key.prefix)
            assert row is not None
            grant = row.verdict()
            assert isinstance(grant, Grant) and grant.overflows == allowed
    finally:
        await reader.close()


@pytest.mark.django_db
def test_there_are_two_choices(tenant: Tenant) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        Tenant.objects.filter(pk=tenant.pk).update(repair="twice")
