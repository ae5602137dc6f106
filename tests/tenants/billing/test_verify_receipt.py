"""`manage.py verify_receipt`: its output and exit status."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tenants.billing.receipts import FORMAT, Signer, describe, signer
from tenants.models import Tenant, UsageEvent
from tests.tenants.making import make_key
from tests.tenants.spending import spend


@pytest.fixture
def event(tenant: Tenant) -> UsageEvent:
    return spend(make_key(tenant)[0])


def verify(receipt: Any, tmp_path: Path, *arguments: str) -> str:
    file = tmp_path / "receipt.json"
    file.write_text(receipt if isinstance(receipt, str) else json.dumps(receipt))
    output = io.StringIO()
    try:
        call_command("verify_receipt", str(file), *arguments, stdout=output)
    except CommandError as error:
        assert error.returncode == 1
        return f"{output.getvalue()}FAILED: {error}"
    return output.getvalue()


def test_the_command_on_one_receipt(event: UsageEvent, tmp_path: Path) -> None:
    signed = signer().sign(describe(event))
    valid = f"valid: req_{event.id}, 0.000016200000 usd"
    assert verify(signed, tmp_path) == f"{valid}; the ledger agrees\n"
    forged = json.loads(json.dumps(signed))
    forged["receipt"]["cost_pico"] = 1
    assert verify(forged, tmp_path).startswith("INVALID: `receipt` differs from the payload")
    assert "FAILED" in verify(forged, tmp_path)
    UsageEvent.objects.update(cost=1)
    assert f"{valid}; but DIFFERS from the ledger in cost, cost_pico" in verify(signed, tmp_path)
    assert "FAILED" in verify(signed, tmp_path)
    UsageEvent.objects.all().delete()
    assert verify(signed, tmp_path) == f"{valid}; not in this ledger\n"


def test_the_command_on_a_list(event: UsageEvent, tmp_path: Path) -> None:
    events = [event, spend(event.key)]
    page: dict[str, Any] = {
        "object": "list",
        "data": [signer().sign(describe(each)) for each in events],
    }
    assert verify(page, tmp_path).endswith("2 receipts, 0.000032400000 in total\n")
    twice = page | {"data": page["data"] + page["data"][:1]}
    told = verify(twice, tmp_path)
    assert "the ledger agrees; but it occurs TWICE\n" in told and "FAILED" in told
    page["data"][0]["receipt"]["tenant"] = "other"
    assert "FAILED" in verify(page, tmp_path)
    empty = {"object": "list", "data": []}
    assert verify(empty, tmp_path) == "0 receipts, 0.000000000000 in total\n"


def test_the_command_with_another_public_key(event: UsageEvent, tmp_path: Path) -> None:
    other = Signer("the secret of another installation")
    signed = other.sign(describe(event) | {"id": "req_elsewhere"})
    assert "names the key" in verify(signed, tmp_path)
    file = tmp_path / "key.pem"
    file.write_text(other.public_key.pem)
    public = other.public_key
    for key in (public.raw.hex(), public.pem, json.dumps(public.jwk), str(file)):
        assert "not in this ledger" in verify(signed, tmp_path, f"--public-key={key}")
    assert "--public-key: it is neither" in verify(signed, tmp_path, "--public-key=00")


def test_the_command_as_a_process() -> None:
    """It reads from standard input, needs no ledger, and sets the exit status."""

    def run(signed: dict[str, Any]) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "manage.py", "verify_receipt", "-"],
            input=json.dumps(signed),
            env={**os.environ, "LORIKEET_DATABASE_URL": "postgresql:///none?host=/nowhere"},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout

    signed = signer().sign(
        {
            "format": FORMAT,
            "id": "req_1",
            "cost": "0.000000000003",
            "currency": "usd",
            "cost_pico": 3,
        }
    )
    valid = "valid: req_1, 0.000000000003 usd; the ledger cannot be read\n"
    assert run(signed) == (0, valid)
    signed["receipt"]["cost"] = "0"
    assert run(signed) == (1, "INVALID: `receipt` differs from the payload of `jws`\n")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "receipt.json"),
        ("[]", "not an object"),
        ('{"a": 1, "a": 2}', "twice"),
        ('{"object": "list", "data": 3}', "contains no receipts"),
        ('{"object": "list"}', "contains no receipts"),
        ('{"object": "list", "data": [3]}', "contains no receipts"),
        ("{}", "INVALID: it is not a receipt"),
    ],
)
def test_an_invalid_receipt_fails_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    answer = verify(text, tmp_path)
    assert "FAILED" in answer and why in answer


@pytest.mark.django_db
def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        call_command("verify_receipt", str(tmp_path / "none"))
