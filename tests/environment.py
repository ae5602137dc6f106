"""The environment of a test run: a real PostgreSQL and fresh secrets, before Django reads them.

A pytest plugin (`-p tests.environment`), because pytest-django reads the settings before conftest
files are loaded. TEST_DATABASE_URL names a PostgreSQL to use instead of the embedded one, with a
role that is a superuser.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from pathlib import Path

import certifi

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
from gateway.database import start_embedded  # noqa: E402
from inference.agent.engines.vllm import environment  # noqa: E402, F401  before anything imports torch

if "LORIKEET_TESTS" not in os.environ:
    _run = tempfile.TemporaryDirectory(prefix="lorikeet-tests-", ignore_cleanup_errors=True)
    os.chmod(_run.name, 0o711)  # the account that runs PostgreSQL passes through it
    os.environ["LORIKEET_TESTS"] = os.environ["TMPDIR"] = tempfile.tempdir = _run.name
RUN = Path(os.environ["LORIKEET_TESTS"])
"""Folder of the run, shared by its processes and deleted at its end: also the temporary folder, so
that killed processes leave nothing behind."""
VAR = RUN / str(os.getpid())
VAR.mkdir(mode=0o700)
POSTGRES = RUN / "postgres"
"""Folder of the embedded server, which the process that began the run starts."""
END_OF_ONE = "-----END CERTIFICATE-----\n"
AUTHORITIES = VAR / "authorities.pem"
"""A bundle with a single certificate authority: no test contacts a public host, and each httpx
client would take a twentieth of a second to read the full bundle."""
AUTHORITIES.write_text(Path(certifi.where()).read_text().partition(END_OF_ONE)[0] + END_OF_ONE)
for name in (
    "LORIKEET_REDIS_URL",
    "LORIKEET_S3_BUCKET",
    "LORIKEET_MODEL",
    "LORIKEET_DEBUG",
):
    os.environ.pop(name, None)
os.environ |= {
    "LORIKEET_VAR": str(VAR),
    "SSL_CERT_FILE": str(AUTHORITIES),
    "LORIKEET_SECRET_KEY": secrets.token_urlsafe(32),
    "LORIKEET_KEY_PEPPER": secrets.token_urlsafe(32),
    "LORIKEET_DISPATCH_KEY": secrets.token_urlsafe(32),
    "LORIKEET_WORKER_TOKEN": secrets.token_urlsafe(32),
    "LORIKEET_INTERNAL_TOKEN": secrets.token_urlsafe(32),
    "LORIKEET_RECEIPT_KEY": secrets.token_urlsafe(32),
    "LORIKEET_CONTENT_KEY": secrets.token_urlsafe(32),
    "LORIKEET_WEBHOOK_TEST_WAIT_S": "0",
    "LORIKEET_UPLOAD_WAIT_S": "600",  # on a busy machine a check takes longer than users wait
    "LORIKEET_DATABASE_URL": os.environ.get("TEST_DATABASE_URL") or start_embedded(POSTGRES),
}
