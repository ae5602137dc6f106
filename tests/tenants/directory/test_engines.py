"""Which credentials of engines are valid, from the row to the gateway's memory."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from gateway.local import seed
from inference.errors import InvalidApiKey, Unavailable
from tenants.directory.engines import KnownEngines
from tenants.directory.notices import Notice
from tenants.directory.reader import EngineRow
from tenants.errors import CredentialExists, CredentialRevoked
from tenants.models import AuditEntry, EngineCredential
from tests.tenants.directory.test_notices import notices_of
from tests.tenants.making import make_user

pytestmark = pytest.mark.django_db(transaction=True)
TOKEN = "t" * 40


def rows() -> list[EngineRow]:
    found = EngineCredential.objects.live()
    return [EngineRow(o.pk, o.name, o.prefix, bytes(o.secret_hmac), o.pools) for o in found]


def test_a_credential_is_known_by_its_text_alone() -> None:
    credential, text = EngineCredential.objects.issue(name="gpu-1", pools=["b", "a"])
    other, others = EngineCredential.objects.issue(name="gpu-2")
    assert text.startswith(f"le_{credential.prefix}_")
    assert credential.secret_hmac not in (text, text.encode())
    engines = KnownEngines()
    with pytest.raises(Unavailable):
        engines.identify(text)
    engines.learn(rows())
    known = engines.identify(text)
    assert (known.id, known.name, known.pools) == (credential.pk, "gpu-1", frozenset("ab"))
    assert known.may_serve("a") and not known.may_serve("c")
    assert engines.identify(others).id == other.pk and engines.identify(others).may_serve("c")
    swapped = f"le_{credential.prefix}_{others.rpartition('_')[2]}"
    for wrong in ("", text[:-1], text + "x", text.swapcase(), swapped, f"lk_{text[3:]}", "é"):
        with pytest.raises(InvalidApiKey):
            engines.identify(wrong)


def test_changes_are_learned_and_revoked_credentials_are_refused() -> None:
    credential, text = EngineCredential.objects.issue(name="gpu-1")
    engines, changes = KnownEngines(), list[int]()
    engines.on_change(lambda: changes.append(1))
    engines.learn(rows())
    known = engines.identify(text)
    assert engines.holds(known)
    rotated = credential.rotate()
    engines.learn(rows())
    assert not engines.holds(known)
    with pytest.raises(InvalidApiKey):
        engines.identify(text)
    again = engines.identify(rotated)
    assert again.id == known.id
    credential.revoke()
    engines.learn(rows())
    assert not engines.holds(again) and len(changes) == 3
    with pytest.raises(InvalidApiKey):
        engines.identify(rotated)
    with pytest.raises(CredentialRevoked):
        credential.rotate()


def test_names_are_of_one_engine_that_holds() -> None:
    credential, _ = EngineCredential.objects.issue(name="gpu-1")
    with pytest.raises(CredentialExists):
        EngineCredential.objects.issue(name="gpu-1")
    credential.revoke()
    assert credential.revoked_at is not None
    at = credential.revoked_at
    credential.revoke()
    assert credential.revoked_at == at, "the first time counts"
    EngineCredential.objects.issue(name="gpu-1")
    with pytest.raises(IntegrityError), transaction.atomic():
        EngineCredential.objects.create(name="", prefix="x", secret_hmac=b"x")


def test_gateways_and_the_audit_log_hear_of_changes_and_not_of_sightings() -> None:
    operator, changed = make_user("operator"), Notice("engine")
    made = notices_of(lambda: EngineCredential.objects.issue(name="a", created_by=operator))
    assert made == [changed]
    credential = EngineCredential.objects.get()
    here = EngineCredential.objects.filter(pk=credential.pk)
    assert notices_of(lambda: here.update(last_seen_at=timezone.now())) == []
    assert notices_of(credential.rotate) == [changed]
    assert notices_of(credential.revoke) == [changed]
    assert notices_of(credential.delete) == [changed]
    audited = AuditEntry.objects.filter(kind="credential").order_by("id")
    assert [entry.action for entry in audited] == ["created", "changed", "changed", "deleted"]
    assert not audited.filter(after__has_key="secret_hmac").exists()


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("engine_credential", *arguments, stdout=out)
    return out.getvalue().strip()


def test_credentials_are_made_listed_rotated_and_revoked_by_command() -> None:
    text = command("make", "gpu-1", "--pool", "llama", "--pool", "qwen")
    credential = EngineCredential.objects.get()
    assert credential.matches(text) and credential.pools == ["llama", "qwen"]
    assert command("list") == f"gpu-1\tle_{credential.prefix}\tllama,qwen\tnever"
    with pytest.raises(CommandError, match="has this name"):
        command("make", "gpu-1")
    rotated = command("rotate", "gpu-1")
    credential.refresh_from_db()
    assert credential.matches(rotated) and not credential.matches(text)
    assert command("revoke", "gpu-1") == "Revoked: gpu-1."
    assert command("list") == ""
    with pytest.raises(CommandError, match="no credential"):
        command("revoke", "gpu-1")


def test_up_keeps_the_credentials_that_it_knows() -> None:
    first = seed.engines({}, ["engine-1", "engine-2"])
    assert seed.engines({"engines": first}, ["engine-1", "engine-2"]) == first
    ids = set(EngineCredential.objects.values_list("pk", flat=True))
    forgotten = seed.engines({}, ["engine-1"])
    assert forgotten["engine-1"] != first["engine-1"]
    assert set(EngineCredential.objects.values_list("pk", flat=True)) == ids
    EngineCredential.objects.get(name="engine-1").revoke()
    anew = seed.engines({"engines": forgotten}, ["engine-1"])
    assert EngineCredential.objects.live().get(name="engine-1").matches(anew["engine-1"])


def test_credentials_are_read_without_the_models() -> None:
    """By the query that gateways use."""
    from tenants.directory.reader import ENGINE_CREDENTIALS

    EngineCredential.objects.issue(name="a")
    EngineCredential.objects.issue(name="b")[0].revoke()
    with connection.cursor() as cursor:
        cursor.execute(ENGINE_CREDENTIALS)
        assert [row[1] for row in cursor.fetchall()] == ["a"]
