"""`lorikeet loop`: what a training loop asks of its vLLM server, and what Lorikeet is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from lorikeet.api import Api
from lorikeet.connection import Connection
from lorikeet.transfer.archive import CONFIG, WEIGHTS
from tests.client_cli.conftest import Run
from tests.client_cli.looping import looping

URL = "http://lorikeet"
EVENTS = [b"data: one\n\n", b"data: two\n\n"]


class Lorikeet:
    """Answers in the place of the API, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.asked.append(request)
        if request.url.path == "/v1/unreachable":
            raise httpx.ConnectError("no route")
        if request.url.path == "/v1/completions":
            return httpx.Response(200, stream=httpx.ByteStream(b"".join(EVENTS)))
        headers = {"content-length": "4", "x-lorikeet-adapter": "policy@1"}
        return httpx.Response(201, stream=httpx.ByteStream(b"done"), headers=headers)


@pytest.fixture
def lorikeet() -> Lorikeet:
    return Lorikeet()


@pytest.fixture
def api(lorikeet: Lorikeet) -> Api:
    return Api(Connection(URL, URL, "lk_1"), transport=httpx.MockTransport(lorikeet))


@pytest.fixture
def client(api: Api) -> Iterator[httpx.Client]:
    with looping(api) as client:
        yield client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What PEFT saves."""
    (tmp_path / CONFIG).write_text("{}")
    (tmp_path / WEIGHTS).write_bytes(b"weights")
    return tmp_path


def test_a_request_is_passed_on_with_the_key(client: httpx.Client, lorikeet: Lorikeet) -> None:
    headers = {"Authorization": "Bearer EMPTY", "Structure-Repair": "once"}
    answer = client.post("/v1/load_lora_adapter?a=1", json={"lora_path": "file-1"}, headers=headers)
    assert (answer.status_code, answer.text) == (201, "done")
    assert answer.headers["x-lorikeet-adapter"] == "policy@1"
    (asked,) = lorikeet.asked
    assert str(asked.url) == f"{URL}/v1/load_lora_adapter?a=1"
    assert asked.headers["authorization"] == "Bearer lk_1"
    assert asked.headers["structure-repair"] == "once"
    assert asked.content == b'{"lora_path":"file-1"}'


def test_a_stream_is_passed_on(client: httpx.Client) -> None:
    with client.stream("POST", "/v1/completions", json={}) as answer:
        assert answer.headers["transfer-encoding"] == "chunked"
        assert b"".join(answer.iter_bytes()) == b"".join(EVENTS)
    assert client.get("/v1/models").status_code == 201, "the connection goes on"


@pytest.mark.parametrize("model", ["", "base"])
def test_a_folder_is_loaded_with_its_files(
    api: Api, lorikeet: Lorikeet, folder: Path, model: str
) -> None:
    body = {"lora_name": "policy-v1", "lora_path": str(folder), "load_inplace": False}
    with looping(api, model) as client:
        answer = client.post("/v1/load_lora_adapter", json=body)
    assert (answer.status_code, answer.text) == (201, "done")
    sent = lorikeet.asked[0]
    assert sent.headers["content-type"].startswith("multipart/form-data")
    fields = {b'"lora_name"\r\n\r\npolicy-v1', b'"load_inplace"\r\n\r\nfalse'}
    files = {f'filename="{name}"'.encode() for name in (CONFIG, WEIGHTS)} | {b"weights"}
    assert all(part in sent.content for part in fields | files)
    assert (b'"base_model"\r\n\r\nbase' in sent.content) is bool(model)
    assert str(folder).encode() not in sent.content


def test_a_folder_without_an_adapter_is_named(
    client: httpx.Client, lorikeet: Lorikeet, tmp_path: Path
) -> None:
    answer = client.post("/v1/load_lora_adapter", json={"lora_path": str(tmp_path)})
    assert answer.status_code == 400 and not lorikeet.asked
    assert f"{tmp_path / CONFIG} does not exist" in answer.json()["error"]["message"]


def test_what_loops_ask_of_vllm_itself_is_answered(
    client: httpx.Client, lorikeet: Lorikeet
) -> None:
    assert client.get("/health").status_code == 201
    assert lorikeet.asked[0].url.path == "/healthz"
    assert client.post("/pause?mode=keep").status_code == 200
    assert client.post("/resume").status_code == 200
    config = client.get("/server_info?config_format=json").json()["vllm_config"]
    assert config["lora_config"]["max_loras"] == 16
    assert client.post("/init_weight_transfer_engine", json={}).status_code == 404
    assert len(lorikeet.asked) == 1


@pytest.mark.parametrize("headers", [{"Origin": "http://localhost"}, {"Host": "evil.example:80"}])
def test_a_web_page_is_not_answered(
    client: httpx.Client, lorikeet: Lorikeet, headers: dict[str, str]
) -> None:
    assert client.post("/v1/completions", json={}, headers=headers).status_code == 400
    assert not lorikeet.asked


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Content-Length", f"{(64 << 20) + 1}"),
        ("Content-Length", "9" * 5000),
        ("Transfer-Encoding", "chunked"),
    ],
)
def test_a_body_that_is_too_large_or_of_unknown_length_is_not_read(
    client: httpx.Client, lorikeet: Lorikeet, header: str, value: str
) -> None:
    raw = HTTPConnection(client.base_url.host, client.base_url.port)
    with closing(raw):
        raw.putrequest("POST", "/v1/completions")
        raw.putheader(header, value)
        raw.endheaders()
        assert raw.getresponse().status == 400 and not lorikeet.asked


def test_when_lorikeet_is_unreachable_it_says_so(client: httpx.Client) -> None:
    answer = client.get("/v1/unreachable")
    assert answer.status_code == 502 and "no route" in answer.json()["error"]["message"]


def test_a_port_that_is_taken_is_named(
    client: httpx.Client, api: Api, monkeypatch: pytest.MonkeyPatch, home: Path, run: Run
) -> None:
    monkeypatch.setenv("LORIKEET_URL", URL)
    monkeypatch.setenv("LORIKEET_API_URL", URL)
    monkeypatch.setenv("LORIKEET_KEY", "lk_1")
    done = run("loop", "--port", client.base_url.port)
    assert done.code == 1 and f"Port {client.base_url.port}" in done.err
