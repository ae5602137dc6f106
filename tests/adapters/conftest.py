"""A tenant, a base model, each kind of storage, and a gateway that answers probes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import InMemoryStorage, storages
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from tenants.models import BaseModel, GatewayProcess, Tenant
from tests.adapters.checks.builder import modules
from tests.adapters.working import unpacking
from tests.storing import FOLDERS, MEMORY, store_in
from tests.tenants.making import make_gateway


@pytest.fixture(params=["local folder", "object storage"])
def storage(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Any:
    """Storage of adapter files: a local folder, or one without paths. The others are folders."""
    store_in(settings, tmp_path, adapters=FOLDERS if request.param == "local folder" else MEMORY)
    return storages["adapters"]


@pytest.fixture
def object_storage(settings: Settings, tmp_path: Path) -> InMemoryStorage:
    store_in(settings, tmp_path, adapters=MEMORY)
    found = storages["adapters"]
    assert isinstance(found, InMemoryStorage)
    return found


@pytest.fixture
def tenant(db: None) -> Tenant:
    return Tenant.objects.create(slug="acme", name="Acme")


@pytest.fixture
def base_model(db: None) -> BaseModel:
    return BaseModel.objects.create(
        name="tiny",
        max_model_len=512,
        max_lora_rank=16,
        modules=modules(),
        engine="synthetic",
    )


@pytest.fixture
def no_jobs(transactional_db: None) -> None:
    """Empty procrastinate's tables, which Django does not flush between tests."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE procrastinate_jobs, procrastinate_workers CASCADE")


@pytest.fixture
def worker(no_jobs: None) -> Iterator[None]:
    """A running worker that unpacks uploads, but judges no version."""
    with unpacking():
        yield


GOOD = {
    "load_s": 0.25,
    "weight_bytes": 4096,
    "max_logprob_delta": 1.5,
    "finite": True,
    "base_text": "hello",
    "adapter_text": "ahoy\0",
}


class FakeGateway:
    """Serves `POST /engine/probe` over real HTTP with `answers` in turn, then repeats the last."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = [(200, json.dumps(GOOD).encode())]
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                gateway.asked.append((self.path, self.headers["Authorization"], body))
                several = len(gateway.answers) > 1
                status, content = gateway.answers.pop(0) if several else gateway.answers[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def say(self, *answers: dict[str, Any]) -> None:
        """Set the answers: reports, or `{"code": ..., "status": ...}` for an error."""
        self.answers = [
            (answer["status"], json.dumps({"error": {**answer, "message": "the reason"}}).encode())
            if "code" in answer
            else (200, json.dumps({**GOOD, **answer}).encode())
            for answer in answers
        ]


@pytest.fixture
def gateway(db: None) -> Iterator[FakeGateway]:
    found = FakeGateway()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    make_gateway(found.url)  # keep it alive for the whole test:
    GatewayProcess.objects.update(heartbeat_at=timezone.now() + timedelta(days=1))
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()
