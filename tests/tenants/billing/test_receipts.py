"""Receipts say what the ledger says, and cannot be forged."""

from __future__ import annotations

import json
import random
import secrets
import subprocess
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from jwt import PyJWS

from inference.link.accounts import Account, LedgerEntry, Usage
from tenants.billing.ledger import connect
from tenants.billing.lines import StatementLine
from tenants.billing.money import amount
from tenants.billing.receipts import (
    TYPE,
    InvalidPublicKey,
    InvalidReceipt,
    PublicKey,
    Signer,
    canonical,
    describe,
    differences,
    signer,
    verify,
)
from tenants.billing.statements import write
from tenants.models import ApiKey, Tenant, UsageEvent
from tests.tenants.callers import Api, everybody
from tests.tenants.making import make_adapter, make_base, make_key, make_tenant, make_version
from tests.tenants.spending import NOON, spend

SECRET = "a secret of an installation, long enough"
RECEIPT = {"format": "lorikeet-receipt-1", "id": "req_1", "model": "großes/模型", "cost_pico": 3}


def ask(credential: str | Api | None, path: str, **query: Any) -> Any:
    """The answer to a GET under `/v1/usage/receipts`."""
    api = credential if isinstance(credential, Api) else Api(credential)
    return api.client.get(f"/v1/usage/receipts{path}", query_params=query, headers=api.headers)


# --- Signatures ----------------------------------------------------------------------------------


def test_the_canonical_form() -> None:
    assert canonical({"b": 'é"\n\x01', "a": {"d": None, "c": [1, True]}}) == (
        '{"a":{"c":[1,true],"d":null},"b":"é\\"\\n\\u0001"}'.encode()
    )
    with pytest.raises(ValueError):
        canonical({"a": float("nan")})


def test_the_key_is_the_documented_derivation_of_the_secret() -> None:
    """HKDF-SHA256, computed with OpenSSL's own command: the figures must never change."""
    key = Signer(SECRET).public_key
    assert key.raw.hex() == "8f864e25a2b6bceb56a7696bc2898f108860a4a8ff675a68be3f980c097b2c45"
    assert key.id == "772732fc567fb064"
    assert Signer(SECRET).public_key == key != Signer(SECRET + "x").public_key


def test_openssl_verifies_a_receipt(tmp_path: Path) -> None:
    """As RFC 7515 has it: the signature is of the header, a dot and the payload."""
    signing_input, _, signature = Signer(SECRET).sign(RECEIPT)["jws"].rpartition(".")
    (tmp_path / "key.pem").write_text(Signer(SECRET).public_key.pem)
    (tmp_path / "signature").write_bytes(urlsafe_b64decode(f"{signature}=="))

    def openssl(message: str) -> int:
        (tmp_path / "message").write_text(message)
        command = "openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in message"
        arguments = [*command.split(), "-sigfile", "signature"]
        return subprocess.run(arguments, cwd=tmp_path, capture_output=True).returncode

    assert openssl(signing_input) == 0
    assert openssl(f"{signing_input}A") == 1
    header, _, payload = signing_input.partition(".")
    assert json.loads(urlsafe_b64decode(f"{payload}==")) == RECEIPT
    assert json.loads(urlsafe_b64decode(f"{header}==")) == {
        "alg": "EdDSA",
        "typ": "lorikeet-receipt+json",
        "kid": "772732fc567fb064",
    }


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_a_receipt_is_verified_after_a_round_trip_through_json(fields: dict[str, Any]) -> None:
    made = Signer(SECRET)
    try:
        signed = made.sign(fields | RECEIPT)
    except UnicodeEncodeError:
        return  # a lone surrogate cannot be encoded, so no database contains it
    read = json.loads(json.dumps(signed, indent=2))
    assert verify(read, [made.public_key]) == fields | RECEIPT
    assert verify({"jws": read["jws"]}, [made.public_key]) == fields | RECEIPT


KEY = Signer(SECRET).public_key


def changed(signed: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(signed))
    parent = copy
    *parts, last = path.split(".")
    for part in parts:
        parent = parent[part]
    parent[last] = value
    return copy


def jws(payload: object = RECEIPT, *, alg: str = "EdDSA", **header: Any) -> str:
    """A JWS of this payload that the installation's own key signed."""
    made = Signer(SECRET)
    named = {"typ": TYPE, "kid": KEY.id} | header
    key = made._key if alg == "EdDSA" else KEY.raw
    return PyJWS().encode(json.dumps(payload).encode(), key, alg, headers=named)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("", "does not match"),
        ("a.b.c", "does not match"),
        (jws()[:-4] + "AAAA", "does not match"),
        (jws(RECEIPT | {"cost_pico": 2}).rpartition(".")[0] + jws()[-87:], "does not match"),
        (jws(alg="HS256"), "does not match"),  # the public key used as a shared secret
        (jws(typ="JWT"), "its type"),
        (jws(kid="0123456789abcdef"), "names the key '0123456789abcdef'"),
        (jws(kid=""), "names the key ''"),
        (jws(RECEIPT | {"format": "lorikeet-receipt-2"}), "format"),
        (jws([RECEIPT]), "does not match"),
    ],
)
def test_a_jws_that_is_no_receipt_is_invalid(token: str, why: str) -> None:
    with pytest.raises(InvalidReceipt, match=why):
        verify({"jws": token}, [KEY])


def test_a_receipt_that_differs_from_its_signed_payload_is_invalid() -> None:
    signed = Signer(SECRET).sign(RECEIPT)
    for path, value in (("receipt.cost_pico", 2), ("receipt.extra", None), ("receipt", None)):
        with pytest.raises(InvalidReceipt, match="differs from the payload of `jws`"):
            verify(changed(signed, path, value), [KEY])


def test_another_key_does_not_verify() -> None:
    other = Signer("somebody else's secret")
    with pytest.raises(InvalidReceipt, match="names the key"):
        verify(other.sign(RECEIPT), [KEY])
    assert verify(other.sign(RECEIPT), [KEY, other.public_key]) == RECEIPT
    forged = PyJWS().encode(b"{}", other._key, "EdDSA", headers={"typ": TYPE, "kid": KEY.id})
    with pytest.raises(InvalidReceipt, match="does not match"):
        verify({"jws": forged}, [KEY])


def test_a_public_key_in_each_of_its_forms() -> None:
    key = KEY
    assert PublicKey.parse(key.pem) == PublicKey.parse(f" {key.raw.hex().upper()}\n") == [key]
    assert PublicKey.parse(json.dumps(key.jwk)) == [key]
    assert PublicKey.parse(json.dumps({"keys": [key.jwk, key.jwk]})) == [key, key]
    for text in (
        "",
        "00",
        key.raw.hex() + "00",
        "-----BEGIN PUBLIC KEY-----\n",
        "é",
        "{",
        "{}",
        '{"keys": 3}',
        '{"keys": [3]}',
        '{"kty": "oct", "k": "AAAA"}',
        json.dumps(key.jwk | {"x": "AAAA"}),
        json.dumps(key.jwk | {"d": key.jwk["x"]}),
    ):
        with pytest.raises(InvalidPublicKey):
            PublicKey.parse(text)
    rsa = generate_private_key(65537, 2048).public_key()
    with pytest.raises(InvalidPublicKey, match="not an Ed25519 public key"):
        PublicKey.parse(rsa.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


# --- The ledger ----------------------------------------------------------------------------------


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return make_key(tenant)[0]


@pytest.fixture
def event(key: ApiKey) -> UsageEvent:
    version = make_version(make_adapter(key.tenant))
    return spend(key, model="support@live", adapter="support", version=version)


def test_a_receipt_says_all_of_the_event(event: UsageEvent) -> None:
    version = event.version
    assert version is not None
    assert describe(UsageEvent.objects.get()) == {
        "format": "lorikeet-receipt-1",
        "id": f"req_{event.id}",
        "tenant": "acme",
        "api_key_id": event.key_id,
        "model": "support@live",
        "base_model": "base",
        "adapter": "support",
        "adapter_version": 1,
        "adapter_digest": version.digest,
        "attempt": 1,
        "engine": "e1",
        "started_at": "2026-05-01T12:00:00.000000Z",
        "queue_us": 100_000,
        "load_us": 200_000,
        "ttft_us": 300_000,
        "total_us": 900_000,
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 7,
        "reasoning_tokens": 2,
        "is_estimated": False,
        "prompt_price": 150_000,
        "cached_prompt_price": 75_000,
        "output_price": 600_000,
        "cost": "0.000016200000",
        "cost_pico": 16_200_000,
        "currency": "usd",
        "finish_reason": "stop",
    }


def test_the_ledger_agrees_with_its_receipt_even_when_the_adapter_is_gone(
    event: UsageEvent,
) -> None:
    receipt = describe(event)
    assert differences(receipt, UsageEvent.objects.get()) == []
    assert differences(receipt | {"cost": "0", "more": 1}, event) == ["cost", "more"]
    assert differences(receipt | {"adapter_version": 2}, event) == ["adapter_version"]
    older = {name: value for name, value in receipt.items() if name != "is_estimated"}
    assert differences(older, event) == []
    event.is_estimated = True
    assert describe(event)["is_estimated"] is True
    assert differences(older, event) == ["is_estimated"]
    assert event.version is not None
    make_version(event.version.adapter).adapter.retire()
    later = UsageEvent.objects.get()
    assert describe(later)["adapter_version"] is None
    assert differences(receipt, later) == []


# --- Over HTTP -----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "req_", "chatcmpl-", "cmpl-"])
def test_a_receipt_by_each_name_of_its_request(event: UsageEvent, prefix: str) -> None:
    _, secret = make_key(event.tenant, "inference")
    answer = ask(secret, f"/{prefix}{event.id}")
    assert answer.status_code == 200
    assert verify(answer.json(), [signer().public_key]) == describe(event)


def test_receipts_by_role(event: UsageEvent) -> None:
    answers = {}
    for name, api in everybody(event.tenant).items():
        answer = ask(api, f"/{event.id}")
        answers[name] = (answer.status_code, ask(api, "").status_code, ask(api, "/key").status_code)
        if answer.status_code != 200:
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    persons = dict.fromkeys(
        ["owner", "admin", "developer", "viewer", "operator", "outsider", "nobody"],
        (401, 401, 200),  # /v1/ ignores sessions
    )
    assert answers == persons | {
        "admin key": (200, 200, 200),
        "usage key": (200, 200, 200),
        "inference key": (200, 403, 200),
        "writing key": (403, 403, 200),
        "scoring key": (403, 403, 200),
        "foreign key": (404, 200, 200),
    }


def test_another_tenants_receipt_looks_like_none(event: UsageEvent) -> None:
    _, secret = make_key(make_tenant(), "admin")
    answers = [ask(secret, f"/{id}") for id in (event.id, "f" * 32, "%00", "x" * 65, "a%20b")]
    assert {answer.status_code for answer in answers} == {404}
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].json()["error"]["code"] == "not_found"
    assert ask(secret, "").json()["data"] == []
    refused = [ask(secret, "", after=f"req_{id}") for id in (event.id, "f" * 32)]
    assert {answer.status_code for answer in refused} == {400}
    assert refused[0].content == refused[1].content


@pytest.mark.parametrize("end", ["revoke", "expire", "suspend", "wrong", "none", "basic"])
def test_a_key_that_is_not_usable_is_nobody(event: UsageEvent, end: str) -> None:
    key, secret = make_key(event.tenant, "admin")
    authorization = f"Bearer {secret}"
    if end == "revoke":
        key.revoke()
    elif end == "expire":
        ApiKey.objects.update(expires_at=key.created_at)
    elif end == "suspend":
        Tenant.objects.update(status="suspended")
    else:
        authorization = {"wrong": "Bearer lk_x", "none": "", "basic": f"Basic {secret}"}[end]
    headers = {"Authorization": authorization}
    answer = Client().get(f"/v1/usage/receipts/{event.id}", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_using_a_key_is_noted(event: UsageEvent) -> None:
    key, secret = make_key(event.tenant, "admin")
    ask(secret, "")
    key.refresh_from_db()
    assert key.last_used_at is not None


def test_the_list_in_pages_has_each_receipt_once(key: ApiKey) -> None:
    """Several start in the same moment, so that only their ids order them."""
    expected = [spend(key, NOON + timedelta(seconds=second // 3)).id for second in range(10)]
    spend(make_key(make_tenant())[0])
    _, secret = make_key(key.tenant, "usage:read")
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = ask(secret, "", limit=4, **after).json()
        ids = [verify(each, [signer().public_key])["id"] for each in page["data"]]
        assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
        found += ids
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert found == [f"req_{id}" for id in expected]


def test_the_list_of_a_period(key: ApiKey) -> None:
    middle = [spend(key, NOON + timedelta(hours=hours)) for hours in (0, 1, 2)][1]
    _, secret = make_key(key.tenant, "usage:read")
    noon = int(NOON.timestamp())
    page = ask(secret, "", start_time=noon + 3600, end_time=noon + 7200).json()
    assert [each["receipt"]["id"] for each in page["data"]] == [f"req_{middle.id}"]
    page = ask(secret, "", end_time=noon).json()
    assert page == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip


def entry(key: ApiKey, at: datetime, usage: Usage, model: str = "base") -> LedgerEntry:
    """Its price changes in the middle of an hour."""
    price = (7, 3, 11) if at < NOON + timedelta(minutes=90) else (13, 0, 17)
    account = Account(key.tenant_id, key.pk, at.timestamp(), "base", price=price)
    return LedgerEntry(secrets.token_hex(16), account, model, usage, "stop")


async def write_down(entries: Sequence[LedgerEntry]) -> None:
    async with await connect() as connection:
        await write(connection, [StatementLine("e1", "j1", each) for each in entries])


def all_receipts(secret: str, **period: int) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = ask(secret, "", **period, limit=20, **after).json()
        found += [verify(each, [signer().public_key]) for each in page["data"]]
        if not page["has_more"]:
            return found
        after = {"after": page["last_id"]}


@pytest.mark.django_db(transaction=True)
def test_the_receipts_of_a_period_sum_to_its_bill(tenant: Tenant) -> None:
    """Whole hours, a price that changes in the middle of one, all pages: exact to the pico-unit."""
    made = random.Random(7)
    make_base()
    keys, stranger = [make_key(tenant)[0] for _ in range(3)], make_key(make_tenant())[0]
    entries = [entry(stranger, NOON + timedelta(hours=1), Usage(1, 0, 1))]
    for _ in range(100):
        prompt, at = made.randrange(10_000), NOON + timedelta(seconds=made.randrange(5 * 3600))
        usage = Usage(prompt, made.randrange(prompt + 1), made.randrange(1_000))
        entries.append(entry(made.choice(keys), at, usage, made.choice(["base", "support@2"])))
    three = NOON + timedelta(hours=3)
    entries += [entry(keys[0], three - timedelta(milliseconds=1), Usage(1, 0, 1))]
    entries += [entry(keys[0], three, Usage(1, 0, 1))]
    async_to_sync(write_down)(entries)
    _, secret = make_key(tenant, "usage:read")
    counted = 0
    for first, last in ((0, 5), (0, 1), (1, 3), (3, 5)):
        start, end = NOON + timedelta(hours=first), NOON + timedelta(hours=last)
        period = {"start_time": int(start.timestamp()), "end_time": int(end.timestamp())}
        receipts = all_receipts(secret, **period)
        query = {"bucket": "all", "start": start.isoformat(), "end": end.isoformat()}
        (bill,) = Api(secret)("GET", "costs", **query).json()["results"]
        assert len(receipts) == bill["requests"] > 0
        assert sum(Decimal(receipt["cost"]) for receipt in receipts) == Decimal(bill["cost"]) > 0
        assert amount(sum(receipt["cost_pico"] for receipt in receipts)) == bill["cost"]
        counted += len(receipts)
    assert counted == 2 * 102
    assert {receipt["prompt_price"] for receipt in all_receipts(secret)} == {7, 13}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": "ten"}, "limit"),
        ({"limit": "²"}, "limit"),
        ({"limit": "1" * 5000}, "limit"),
        ({"limit": ["1", "2"]}, "limit"),
        ({"start_time": 1.5}, "start_time"),
        ({"start_time": -1}, "start_time"),
        ({"start_time": 10**12}, "start_time"),
        ({"start_time": 1777636800, "end_time": 1777636800}, "end_time"),
        ({"after": ""}, "after"),
        ({"after": "\0"}, "after"),
        ({"model": "base"}, "model"),
    ],
)
def test_a_list_that_cannot_be_asked_for(tenant: Tenant, query: Any, param: str) -> None:
    _, secret = make_key(tenant, "usage:read")
    answer = ask(secret, "", **query)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert param in error["message"]


@pytest.mark.django_db
def test_the_public_key_is_everybodys() -> None:
    told = ask(None, "/key").json()
    key = signer().public_key
    assert told["object"] == "usage.receipt_key" and told["algorithm"] == "Ed25519"
    assert PublicKey.parse(told["pem"]) == PublicKey.parse(told["public_key"]) == [key]
    assert PublicKey.parse(ask(None, "/jwks.json").content.decode()) == [key]
    assert told["key_id"] == key.id


@pytest.mark.parametrize("method", ["post", "put", "delete"])
def test_other_methods_are_refused(tenant: Tenant, method: str) -> None:
    client = Client(enforce_csrf_checks=True)
    for path in ("receipts", "receipts/key", "receipts/x"):
        answer = getattr(client, method)(f"/v1/usage/{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")


@pytest.mark.django_db
def test_an_unknown_address_has_openais_error() -> None:
    answer = Client().get("/v1/usage/nothing")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_a_receipt_outlives_a_new_secret(event: UsageEvent, settings: Any) -> None:
    _, secret = make_key(event.tenant, "admin")
    old_key, old = signer().public_key, ask(secret, f"/{event.id}").json()
    settings.RECEIPT_KEY = "another secret, as long as the first one"
    new = ask(secret, f"/{event.id}").json()
    assert verify(old, [old_key]) == verify(new, [signer().public_key])
    kid_of = PyJWS().get_unverified_header
    assert kid_of(old["jws"])["kid"] != kid_of(new["jws"])["kid"]
