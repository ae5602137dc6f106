"""`manage.py load` from its options to its report, against a small server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gateway.local.load import main

TRACE = Path(__file__).parents[2] / "inference/load/excerpts/mooncake_conversation.jsonl"


class Answers(BaseHTTPRequestHandler):
    """Answers with a token per two characters asked for; the key `none` is refused."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        refused = self.headers["authorization"] == "Bearer none" and asked["max_tokens"] > 1
        self.send_response(429 if refused else 200)
        self.end_headers()
        if refused:
            return
        usage = {
            "prompt_tokens": len(asked["messages"][0]["content"].split()) + 4,
            "completion_tokens": asked["max_tokens"],
        }
        self._event({"choices": [{"delta": {"content": "x"}}]})
        time.sleep(0.002)  # a token's time
        choice = {"delta": {"content": "y"}, "finish_reason": "length"}
        self._event({"choices": [choice], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, *_: object) -> None:
        pass


class Roomy(ThreadingHTTPServer):
    request_queue_size = 200


@pytest.fixture
def url() -> Iterator[str]:
    server = Roomy(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def tenants(tmp_path: Path) -> Path:
    file = tmp_path / "tenants.toml"
    file.write_text(
        '[acme]\nkey = "secret-key"\nmodels = ["m"]\n[other]\nkey = "none"\nmodels = ["m"]'
    )
    file.chmod(0o600)
    return file


def loaded(url: str, tenants: Path, *options: str) -> int:
    out = tenants.parent / "out"
    with pytest.raises(SystemExit) as ended:
        main(["--base-url", url, "--tenants", str(tenants), "--out", str(out), *options])
    code = ended.value.code
    assert isinstance(code, int), code
    return code


def test_generated_traffic(url: str, tenants: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded(url, tenants, "--rate=200", "--duration=0.5", "--lengths=azure-code") == 0
    said = capsys.readouterr().out
    assert "all" in said and "HTTP 429" in said and "Splitwise" in said
    out = tenants.parent / "out"
    found = json.loads((out / "report.json").read_text())
    assert found["tenants"]["acme"]["errors"] == {}
    planned = found["tenants"]["other"]["planned"]
    assert found["tenants"]["other"]["errors"] == {"HTTP 429": planned} and planned > 10
    page = (out / "report.html").read_text()
    assert "<svg" in page and "secret-key" not in page + said + json.dumps(found)


def test_a_trace(url: str, tenants: Path) -> None:
    options = [f"--trace={TRACE}", "--speed=1000", "--shrink=64", "--limit=12", "--seed=3"]
    loaded(url, tenants, *options)
    found = json.loads((tenants.parent / "out/report.json").read_text())
    assert found["total"]["planned"] == 12
    assert "lengths divided by 64" in found["about"]["Traffic"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate=0"], "argument --rate: 0 is not from 1e-06 to 1e+06"),
        (["--rate=nan"], "argument --rate: nan is not from"),
        (["--limit=1.5"], "argument --limit: invalid int value: '1.5'"),
        (["--base-url=ftp://h"], "'ftp://h' is not an http:// or https:// address"),
        (["--base-url=http://key@h/v1"], "keys belong into the file of --tenants"),
    ],
)
def test_bad_options_are_named(
    tenants: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert loaded("http://127.0.0.1:9/v1", tenants, *options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--flood=nobody"], "--flood nobody: .* has no such tenant"),
        (["--prompt-tokens=5"], "--prompt-tokens and --output-tokens go together"),
        (["--duration=0.001"], "the plan has no requests"),
        (["--trace=/none"], "/none can't be read"),
        (["--arrivals=bursts", "--burst-share=0.9"], "bursts of 5 times the rate"),
        ([], "no connection"),
    ],
)
def test_what_can_not_be_planned_or_sent_is_one_line(
    tenants: Path, options: list[str], said: str
) -> None:
    url = "http://127.0.0.1:9/v1"
    with pytest.raises(SystemExit, match=f"lorikeet load: .*{said}"):
        main(["--base-url", url, "--tenants", str(tenants), *options])
