"""Emails without a mail server are private files, and no secret link is in any log."""

from __future__ import annotations

import json
import logging
import re
import runpy
import stat
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import structlog
from allauth.account.models import EmailAddress
from django.core.mail import send_mail
from django.test import Client

from gateway import secret_links
from gateway.start import ROOT
from inference.process import logs
from tenants.models import Invitation, Role
from tests.tenants.making import make_member, make_tenant, make_user

TOKEN = "dGhlIHRva2Vu-_abc123"


@pytest.fixture
def mails(settings: Any, tmp_path: Path) -> Path:
    settings.EMAIL_BACKEND = "gateway.mail.PrivateFiles"
    settings.EMAIL_FILE_PATH = str(tmp_path / "mail")
    return tmp_path / "mail"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    """The log output of a console process; restores the logging configuration afterwards."""
    before = logging.root.handlers[:], logging.root.level
    written = StringIO()
    monkeypatch.setattr("sys.stderr", written)
    logs.configure("console", "info", clean=secret_links.without_tokens)
    yield written
    logging.root.handlers[:], level = before
    logging.root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.pure
@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (f"/account/password/reset/key/3-{TOKEN}/ 4", "/account/password/reset/key/[secret]/ 4"),
        (f"Not Found: /invitations/{TOKEN}", "Not Found: /invitations/[secret]"),
        (f'{{"path": "/invitations/{TOKEN}"}}', '{"path": "/invitations/[secret]"}'),
        (f"/account/confirm-email/{TOKEN}:x/?a=1", "/account/confirm-email/[secret]/?a=1"),
        ("/t/acme/members/invitations/12/withdraw", "/t/acme/members/invitations/12/withdraw"),
        ("/account/password/reset/", "/account/password/reset/"),
    ],
)  # fmt: skip
def test_tokens_are_cut_out_of_lines(line: str, kept: str) -> None:
    assert secret_links.without_tokens(line) == kept


@pytest.mark.pure
def test_a_mail_is_a_file_that_nobody_else_reads(mails: Path) -> None:
    mails.mkdir(mode=0o755)
    send_mail("Subject", "https://example.com/secret", None, ["ann@example.com"])
    (file,) = mails.iterdir()
    assert "https://example.com/secret" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(mails.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("host", "backend"),
    [
        ("", "gateway.mail.PrivateFiles"),
        ("mail.example", "django.core.mail.backends.smtp.EmailBackend"),
    ],
)
def test_without_a_mail_server_mails_are_files(
    host: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORIKEET_EMAIL_HOST", host)
    made = runpy.run_path(str(ROOT / "platform/gateway/settings.py"))
    assert made["EMAIL_BACKEND"] == backend
    assert Path(made["EMAIL_FILE_PATH"]) == made["VAR"] / "mail"


@pytest.mark.django_db
def test_a_link_that_sets_a_password_is_in_no_log(
    mails: Path, log: StringIO, plain_files: None
) -> None:
    user = make_user("ann", email="ann@example.com", password="an old long password")
    EmailAddress.objects.create(user=user, email=user.email, verified=True, primary=True)
    client = Client(enforce_csrf_checks=True)
    client.get("/account/password/reset/")
    token = client.cookies["csrftoken"].value
    client.post("/account/password/reset/", {"email": user.email, "csrfmiddlewaretoken": token})
    (file,) = mails.iterdir()
    link = re.search(r"http://testserver(/account/password/reset/key/(\S+)/)", file.read_text())
    assert link
    client.get(link[1], follow=True)
    client.post(link[1])  # a CSRF failure, which Django logs with the path
    client.get(link[1] + "nothing/")
    _, invitation = Invitation.objects.invite(
        make_tenant(), role=Role.VIEWER, note="", by=make_member(make_tenant(), "owner")
    )
    client.get(f"/invitations/{invitation}")
    client.post(f"/invitations/{invitation}")
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert {"request", "mail_written"} <= {line["event"] for line in lines}
    assert "/password/reset/key/[secret]/" in log.getvalue()
    for text in (link[2], invitation):
        assert text not in log.getvalue()
