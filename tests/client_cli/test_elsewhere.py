"""Commands that call servers other than the console: the inference API, and a hub."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inference.content import CONFIG, WEIGHTS
from lorikeet.failures import Failure, NotFound
from lorikeet.transfer import hub
from tests.client_cli.conftest import Run

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {CONFIG: b'{"r": 4}', WEIGHTS: b"weights" * 1000}


class Server:
    """Answers GET and POST by path with a status, headers and body; records the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, str | None, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                outer.asked.append((self.path, self.headers["Authorization"], body))
                status, headers, content = outer.answers.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in (headers | {"Content-Length": str(len(content))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def json(self, path: str, body: Any, status: int = 200) -> None:
        kind = {"Content-Type": "application/json"}
        self.answers[path] = (status, kind, json.dumps(body).encode())


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever)
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


# --- The inference API ---------------------------------------------------------------------------


@pytest.fixture
def ask(run: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name, value in {"URL": server.url, "API_URL": server.url, "KEY": "lk_a"}.items():
        monkeypatch.setenv(f"LORIKEET_{name}", value)
    return run


def chunk(**delta: str) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"


def streamed(server: Server, *events: str) -> None:
    body = "".join(events).encode()
    server.answers["/v1/chat/completions"] = (200, {"Content-Type": "text/event-stream"}, body)


def test_models_are_listed(ask: Run, server: Server) -> None:
    server.json("/v1/models", {"data": [{"id": "support", "owned_by": "acme"}]})
    assert "support" in ask("models").out
    assert ask("models", "--json").json == [{"id": "support", "owned_by": "acme"}]
    assert server.asked[0][:2] == ("/v1/models", "Bearer lk_a")


def test_an_answer_is_printed_as_it_comes(ask: Run, server: Server) -> None:
    streamed(server, chunk(role="assistant"), chunk(content="Li"), chunk(content="ma."),
             "data: [DONE]\n\n")  # fmt: skip
    said = ask("chat", "support", "Peru?", "--system", "Be short.", "--max-tokens", 5)
    assert (said.code, said.out) == (0, "Lima.\n")
    body = json.loads(server.asked[0][2])
    assert body == {
        "model": "support", "max_tokens": 5, "stream": True,
        "messages": [{"role": "system", "content": "Be short."},
                     {"role": "user", "content": "Peru?"}],
    }  # fmt: skip


def test_a_conversation_remembers(
    ask: Run, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed(server, chunk(content="Yes."))
    turns = iter(["One?", "", "Two?"])

    def typed(prompt: str) -> str:
        try:
            return next(turns)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    assert ask("chat", "support").out == "Yes.\nYes.\n"
    messages = json.loads(server.asked[-1][2])["messages"]
    assert [one["content"] for one in messages] == ["One?", "Yes.", "Two?"]


def test_errors_of_the_inference_api_are_shown(ask: Run, server: Server) -> None:
    error = {"error": {"message": "The model `x` does not exist.", "code": "model_not_found"}}
    server.json("/v1/chat/completions", error, 404)
    refused = ask("chat", "x", "?")
    assert (refused.code, refused.err) == (4, "lorikeet: The model `x` does not exist.\n")
    assert ask("chat", "x", "?", "--json").code == 4
    streamed(server, chunk(content="Li"), 'data: {"error": {"message": "No engine."}}\n\n')
    cut = ask("chat", "x", "?")
    assert (cut.code, cut.out, cut.err) == (1, "Li\n", "lorikeet: No engine.\n")


def test_a_refusal_that_says_when_to_try_again(ask: Run, server: Server) -> None:
    body = json.dumps({"error": {"message": "Too many requests."}}).encode()
    server.answers["/v1/models"] = (429, {"Retry-After": "7"}, body)
    refused = ask("models")
    assert (refused.code, refused.err) == (6, "lorikeet: Too many requests. Try again in 7 s.\n")


def test_an_answer_of_something_else(ask: Run, server: Server) -> None:
    server.answers["/v1/models"] = (502, {"Content-Type": "text/html"}, b"<html>")
    refused = ask("models")
    assert refused.code == 6 and "answered 502" in refused.err and "<" not in refused.err


# --- A hub ---------------------------------------------------------------------------------------


@pytest.fixture
def repo(server: Server) -> dict[str, tuple[int, dict[str, str], bytes]]:
    """A repository as on Hugging Face: its large file redirects to another URL."""
    for name, data in FILES.items():
        path = f"/acme/support/resolve/{COMMIT}/{name}"
        server.answers[path] = (200, {"X-Repo-Commit": COMMIT, "ETag": '"abc"'}, data)
    digest = hashlib.sha256(FILES[WEIGHTS]).hexdigest()
    elsewhere = f"http://localhost:{server.port}/cdn"
    headers = {"X-Repo-Commit": COMMIT, "X-Linked-ETag": f'"{digest}"', "Location": elsewhere}
    server.answers[f"/acme/support/resolve/{COMMIT}/{WEIGHTS}"] = (302, headers, b"")
    server.answers["/cdn"] = (200, {}, FILES[WEIGHTS])
    return server.answers


PIN = hub.Pin("acme/support", COMMIT)


def test_an_adapter_is_downloaded_from_wherever_the_hub_has_it(
    server: Server, repo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.download(PIN, server.url, tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == FILES
    tokens = {path: token for path, token, _ in server.asked}
    assert tokens.pop("/cdn") is None
    assert set(tokens.values()) == {"Bearer hf_secret"}


def test_a_key_of_lorikeet_is_told_to_no_other_hub(
    server: Server, repo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "lk_abc_def")
    hub.download(PIN, server.url, tmp_path)
    assert {token for _, token, _ in server.asked} == {None}


def test_what_the_hub_did_not_name_is_refused(server: Server, repo: Any, tmp_path: Path) -> None:
    repo["/cdn"] = (200, {}, FILES[WEIGHTS] + b"!")
    with pytest.raises(Failure, match="SHA-256 of"):
        hub.download(PIN, server.url, tmp_path)


def test_another_commit_is_refused(server: Server, repo: Any, tmp_path: Path) -> None:
    path = f"/acme/support/resolve/{COMMIT}/{CONFIG}"
    repo[path] = (200, {"X-Repo-Commit": "f" * 40}, FILES[CONFIG])
    with pytest.raises(Failure, match="not to the requested one"):
        hub.download(PIN, server.url, tmp_path)


def test_endless_redirects_and_missing_files(server: Server, repo: Any, tmp_path: Path) -> None:
    repo["/cdn"] = (302, {"Location": "/cdn"}, b"")
    with pytest.raises(Failure, match="redirects too often"):
        hub.download(PIN, server.url, tmp_path)
    (tmp_path / CONFIG).unlink()
    del repo[f"/acme/support/resolve/{COMMIT}/{CONFIG}"]
    with pytest.raises(NotFound, match="HF_TOKEN"):
        hub.download(PIN, server.url, tmp_path)


@pytest.mark.parametrize(
    "text", ["acme/support", "acme/support@main", f"support@{COMMIT}", f"acme/support@{COMMIT}0",
             f"../x/support@{COMMIT}", f"acme/support@{COMMIT.upper()}"],
)  # fmt: skip
def test_what_is_not_pinned_is_not_downloaded(ask: Run, text: str, server: Server) -> None:
    refused = ask("adapters", "pull-hub", text, "--hub", server.url)
    assert refused.code == 1 and "owner/name@commit" in refused.err
    assert server.asked == []
