"""A deleted tenant leaves its ledger and a signed receipt, and nothing else; others keep all."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core import mail as sent
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import DatabaseError, models, transaction
from django.utils import timezone

from tenants.billing.receipts import InvalidReceipt, describe, signer, verify
from tenants.errors import DeletionBegun, NotDeletable, TenantBeingDeleted
from tenants.models import (
    ApiKey,
    AuditEntry,
    ContentKey,
    RequestMinute,
    StoredContent,
    Tenant,
    TenantDeletion,
    TotalMinute,
    UsageEvent,
    UsageMonth,
    UsageRollup,
    UsageTotal,
    User,
)
from tenants.offboarding import deletion as deleting
from tenants.offboarding.deletion import FORMAT, KEPT, STEPS, TYPE
from tests.tenants.making import make_key, make_tenant
from tests.tenants.offboarding.furnishing import Furnished, furnish, paths_to_tenant

pytestmark = pytest.mark.django_db
LEDGER: list[Any] = [UsageEvent, UsageRollup, UsageMonth, UsageTotal]
NOW = timedelta(0)


@pytest.fixture
def furnished(tenant: Tenant) -> Furnished:
    return furnish(tenant, "mine")


@pytest.fixture
def other(db: None) -> Furnished:
    return furnish(make_tenant("other"), "theirs")


def ask(tenant: Tenant, grace: timedelta = NOW) -> TenantDeletion:
    return TenantDeletion.objects.ask(tenant, by="ann", by_operator=False, grace=grace)


def delete(tenant: Tenant) -> TenantDeletion:
    asked = ask(tenant)
    deleting.run(asked, lambda said: None)
    return asked


def counts(tenant: Tenant) -> dict[type[models.Model], int]:
    """The number of the tenant's rows in each table that can have some."""
    return {
        model: model._default_manager.filter(**{path: tenant.pk}).count()
        for model, path in paths_to_tenant().items()
    }


def files() -> Counter[str]:
    """The files of all tenants, each with the mark that its content ends with."""
    found: Counter[str] = Counter()
    for place in ("adapters", "files", "uploads"):
        folder = Path(storages[place].location)  # type: ignore[attr-defined]
        found.update(one.read_text(errors="replace").split(" ")[-1] for one in _files(folder))
    return found


def _files(folder: Path) -> Iterator[Path]:
    return (one for one in folder.rglob("*") if one.is_file())


# --- What goes and what stays --------------------------------------------------------------------


def test_each_model_of_a_tenant_is_deleted_or_kept_for_a_reason() -> None:
    gone = [step.model for step in STEPS]
    assert len({*gone}) == len(gone) and not KEPT.keys() & {*gone}
    assert paths_to_tenant().keys() == KEPT.keys() | {*gone}
    assert {step.path for step in STEPS} <= {
        "tenant", "member__tenant", "key__tenant", "batch__tenant", "upload__tenant",
        "adapter__tenant", "version__adapter__tenant", "notification__tenant", "job__tenant",
        "eval__tenant", "run__eval__tenant", "split__adapter__tenant",
    }  # fmt: skip


def test_nothing_is_left_and_others_keep_all(furnished: Furnished, other: Furnished) -> None:
    before, theirs = counts(furnished.tenant), counts(other.tenant)
    assert all(count for model, count in before.items() if model is not TenantDeletion)
    assert files()["mine"] >= 6
    ended = delete(furnished.tenant)
    after = counts(furnished.tenant)
    assert {model for model, count in after.items() if count} <= KEPT.keys()
    assert ended.counts == {step.name: before[step.model] for step in STEPS}
    assert counts(other.tenant) == theirs
    assert files()["mine"] == 0 and files()["theirs"] >= 6
    assert not Path(storages["adapters"].path("acme")).exists()
    assert User.objects.filter(pk=furnished.owner.pk).exists()


def test_the_ledger_stays_as_it_was(furnished: Furnished) -> None:
    before = [list(model.objects.order_by("pk").values()) for model in LEDGER]
    event = UsageEvent.objects.get()
    receipt = describe(event)
    delete(furnished.tenant)
    assert [list(model.objects.order_by("pk").values()) for model in LEDGER] == before
    told = describe(UsageEvent.objects.get())
    assert told | {"adapter_version": 1, "adapter_digest": receipt["adapter_digest"]} == receipt


def test_the_key_of_its_content_is_destroyed_and_its_name_and_salt_are_forgotten(
    furnished: Furnished,
) -> None:
    salt = furnished.tenant.salt
    delete(furnished.tenant)
    key = ContentKey.objects.get()
    assert key.wrapped is None and key.confirmation and not StoredContent.objects.exists()
    tenant = Tenant.objects.get()
    assert (tenant.slug, tenant.name, tenant.status) == ("acme", "acme", "suspended")
    assert tenant.salt != salt and tenant.content_days == 0


def test_the_audit_log_says_who_did_what_and_no_more(furnished: Furnished) -> None:
    AuditEntry.objects.note(None, furnished.tenant, "viewed", "mine")
    before = AuditEntry.objects.filter(tenant=furnished.tenant).count()
    delete(furnished.tenant)
    (asked,) = AuditEntry.objects.filter(kind="deletion")
    assert asked.after is not None and asked.after["asked_by"] == "ann"
    rest = AuditEntry.objects.filter(tenant=furnished.tenant).exclude(kind="deletion")
    assert rest.count() > before
    assert {(one.name, one.address, one.before, one.after) for one in rest} == {
        ("", "", None, None)
    }
    assert {"key", "member", "tenant"} <= {one.kind for one in rest}


def test_the_database_lets_nobody_change_the_log_otherwise(furnished: Furnished) -> None:
    blank: dict[str, Any] = {"name": "", "address": "", "before": None, "after": None}

    def refused(**change: Any) -> None:
        with pytest.raises(DatabaseError), transaction.atomic():
            AuditEntry.objects.filter(tenant=furnished.tenant, kind="key").update(**change)

    refused(**blank)
    delete(furnished.tenant)
    refused(actor_name="bob")
    refused(name="a")
    with pytest.raises(DatabaseError), transaction.atomic():
        AuditEntry.objects.filter(kind="deletion").update(**blank)
    with pytest.raises(DatabaseError), transaction.atomic():
        AuditEntry.objects.filter(tenant=furnished.tenant).delete()


# --- Runs ----------------------------------------------------------------------------------------


def test_a_second_run_does_nothing(furnished: Furnished) -> None:
    first = delete(furnished.tenant)
    before, told = counts(furnished.tenant), first.receipt
    deleting.run(first, lambda said: None)
    first.refresh_from_db()
    assert counts(furnished.tenant) == before and first.receipt == told
    assert deleting._redact(furnished.tenant) == 0


def test_a_run_that_was_killed_goes_on_and_counts_nothing_twice(
    furnished: Furnished, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_key(furnished.tenant)
    before, asked = counts(furnished.tenant), ask(furnished.tenant)
    monkeypatch.setattr(deleting, "BATCH", 1)
    for at in (3, 9, 20):
        with pytest.raises(OSError):
            deleting.run(asked, _killed_after(at))
        assert not TenantDeletion.objects.get().ended_at
    deleting.run(asked, lambda said: None)
    assert asked.counts == {step.name: before[step.model] for step in STEPS}
    assert before[ApiKey] == 2


def _killed_after(steps: int) -> deleting.Report:
    done: list[str] = []

    def report(said: str) -> None:
        done.append(said)
        if len(done) == steps:
            raise OSError

    return report


def test_figures_that_come_late_are_deleted_too(furnished: Furnished) -> None:
    row = RequestMinute.objects.values().get()
    ended = delete(furnished.tenant)
    RequestMinute.objects.create(**row)
    assert deleting.due().filter(pk=ended.pk).exists()
    deleting.run(ended, lambda said: None)
    assert not RequestMinute.objects.exists() and not TotalMinute.objects.exists()
    TenantDeletion.objects.update(ended_at=timezone.now() - deleting.LATE)
    assert not deleting.due().exists()


def test_nothing_is_deleted_before_it_is_due(furnished: Furnished) -> None:
    before, asked = counts(furnished.tenant), ask(furnished.tenant, timedelta(days=1))
    assert not deleting.due().exists()
    deleting.run(asked, lambda said: None)
    after = counts(furnished.tenant)
    assert {one for one in after if after[one] < before[one]} == set()


# --- Asking and taking back ----------------------------------------------------------------------


def test_it_is_suspended_at_once_and_active_again_if_that_is_taken_back(
    furnished: Furnished,
) -> None:
    before, key = counts(furnished.tenant), ApiKey.objects.get()
    asked = ask(furnished.tenant, timedelta(days=30))
    key.refresh_from_db()
    assert not key.usable(timezone.now())
    for change in (lambda: ask(furnished.tenant), lambda: furnished.tenant.set_status(ACTIVE)):
        with pytest.raises(TenantBeingDeleted):
            change()
    assert not furnished.tenant.active
    asked.take_back()
    after = counts(furnished.tenant)
    assert ApiKey.objects.select_related("tenant").get().usable(timezone.now())
    assert {one for one in after if after[one] != before[one]} == {AuditEntry}


ACTIVE = Tenant.Status.ACTIVE


def test_one_that_was_suspended_before_stays_so(tenant: Tenant) -> None:
    tenant.set_status(Tenant.Status.SUSPENDED)
    ask(tenant, timedelta(days=1)).take_back()
    assert not Tenant.objects.get().active
    tenant.set_status(ACTIVE)


def test_what_has_begun_cannot_be_taken_back(tenant: Tenant) -> None:
    asked = ask(tenant)
    assert asked.begin() and asked.begin()
    with pytest.raises(DeletionBegun):
        asked.take_back()


def test_the_installations_own_tenants_are_not_deleted(db: None) -> None:
    with pytest.raises(NotDeletable):
        ask(make_tenant(internal=True))


# --- The receipt ---------------------------------------------------------------------------------


def test_the_receipt_says_what_was_deleted_and_verifies(
    furnished: Furnished, tmp_path: Path
) -> None:
    signed = delete(furnished.tenant).signed
    keys = [signer().public_key]
    said = verify(signed, keys, type=TYPE, format=FORMAT)
    assert (said["tenant"], said["asked_by"]) == ("acme", "ann")
    assert said["deleted"]["members"] == 1
    assert said["kept"] == {"requests": 1, "cost_pico": 7}
    with pytest.raises(InvalidReceipt):  # it passes for no receipt of a request
        verify(signed, keys)
    file, output = tmp_path / "receipt.json", StringIO()
    file.write_text(json.dumps(signed))
    call_command("verify_receipt", str(file), stdout=output)
    assert output.getvalue().startswith("valid: deletion of the tenant acme at ")
    file.write_text(json.dumps(signed | {"receipt": {**said, "asked_by": "bob"}}))
    with pytest.raises(CommandError):
        call_command("verify_receipt", str(file), stdout=output)


def test_owners_get_it_by_mail(furnished: Furnished, settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    ended = delete(furnished.tenant)
    (message,) = sent.outbox
    assert message.to == ["mine@example.com"] and "acme" in message.subject
    (attached,) = message.attachments
    assert json.loads(attached[1]) == ended.signed
    deleting.run(ended, lambda said: None)
    assert len(sent.outbox) == 1 and ended.owners == []


# --- The command ---------------------------------------------------------------------------------


def command(*arguments: str) -> str:
    output = StringIO()
    call_command("delete_tenant", *arguments, stdout=output)
    return output.getvalue()


def test_the_command_asks_takes_back_and_deletes(furnished: Furnished) -> None:
    for wrong in (["nobody"], ["acme", "--confirm", "acm"], ["acme", "--take-back"]):
        with pytest.raises(CommandError):
            command(*wrong)
    assert not TenantDeletion.objects.exists()
    assert re.fullmatch(
        r"acme will be deleted on \d{4}-\d\d-\d\d\.\n", command("acme", "--confirm", "acme")
    )
    assert command("acme", "--take-back") == "acme will not be deleted.\n"
    assert Tenant.objects.get().active
    said = command("acme", "--now", "--confirm", "acme")
    told = json.loads(said[said.index("{") :])
    assert told["object"] == "tenant.deleted" and not ApiKey.objects.exists()
    assert json.loads(command("acme")) == told
