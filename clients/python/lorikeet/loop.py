"""`lorikeet loop`: stands in for the vLLM server that a training loop expects on its own machine.

A loop saves each step's adapter in a folder, has its server load the folder by its path, and sends
no key. Here its requests to `/v1` are passed on with the key, and a load with the folder's files.
What it asks of vLLM itself is answered here: whether it serves, its limits, and a pause for the
time of a load, which needs none, because each request keeps the version that it began with.

Only this machine reaches it, and no web page does: a page's requests carry `Origin`, or name
another host.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from lorikeet import connection
from lorikeet.api import Api
from lorikeet.failures import Failure
from lorikeet.output import say
from lorikeet.transfer.archive import adapter_files

HOST = "127.0.0.1"
LOAD = "/v1/load_lora_adapter"
TIMEOUT = httpx.Timeout(None, connect=10)
"""The loop has its own for an answer."""
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=64)
MAX_BYTES = 64 << 20
"""Of a request's body."""
OF_CONNECTION = frozenset(
    "connection date host keep-alive authorization content-length proxy-authorization server "
    "transfer-encoding".split()
)
"""Headers that are not passed on; a body's length is set anew where it is known."""
PLAIN = {"Accept-Encoding": "identity"}
SERVER_INFO = {
    "vllm_config": {
        "lora_config": {"max_lora_rank": 512, "max_loras": 16},
        "parallel_config": {"data_parallel_size": 1},
    }
}
"""The part of vLLM's that loops read, with bounds that no load exceeds: a rank above the engines'
is refused with theirs when it is loaded."""


def loop(
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 8001,
    model: Annotated[
        str, typer.Option(help="Base model of the adapters, if their files do not name it.")
    ] = "",
) -> None:
    """Stand in for the vLLM server of a training loop on this machine, until Ctrl-C.

    Any program of this machine can use your key through it.
    """
    api = Api(connection.load(), timeout=TIMEOUT, limits=LIMITS)
    with api.http:
        api.where = replace(api.where, api_url=api.api_url)
        try:
            server = LoopServer(api, port, model)
        except OSError as error:
            raise Failure(f"Port {port} of this machine can't be used: {error.strerror}.") from None
        with server:
            say(f"The loop's vLLM server is http://{HOST}:{server.server_port}. Ctrl-C ends it.")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                say("Ended.")


class LoopServer(ThreadingHTTPServer):
    """Passes requests on to the API; `model` is the base model of what is loaded, if it is set."""

    daemon_threads = True

    def __init__(self, api: Api, port: int, model: str = "") -> None:
        """Raises OSError if the port can't be used."""
        super().__init__((HOST, port), LoopRequest)
        self.api, self.model = api, model


class LoopRequest(BaseHTTPRequestHandler):
    """One connection of the loop."""

    protocol_version = "HTTP/1.1"
    server: LoopServer

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_DELETE = do_GET

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        try:
            body = self._body()
            self._require_local()
            if path == LOAD and (folder := _folder_of(body)) is not None:
                self._load(folder, json.loads(body))
            elif path.startswith("/v1/"):
                self._pass_on(content=body, headers=self._headers())
            elif path == "/health":
                self._pass_on("/healthz", headers=PLAIN)
            elif path in ("/pause", "/resume"):
                self._say(200, {})
            elif path == "/server_info":
                self._say(200, SERVER_INFO)
            else:
                self._say(404, _error(f"{path} is not answered here."))
        except Failure as failure:
            self.close_connection = True
            self._say(400, _error(str(failure)))

    def _body(self) -> bytes:
        """Raises Failure if it is too large, or of unknown length."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal() or len(length) > 9:
            raise Failure("The body's length must be in `Content-Length`.")
        if int(length) > MAX_BYTES:
            raise Failure(f"The body has {length} bytes; at most {MAX_BYTES} are allowed.")
        return self.rfile.read(int(length))

    def _require_local(self) -> None:
        """Raises Failure for a request of a web page."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (HOST, "localhost") or "Origin" in self.headers:
            raise Failure(f"Only programs that ask http://{HOST} or http://localhost are answered.")

    def _headers(self) -> dict[str, str]:
        given = self.headers.items()
        return {name: text for name, text in given if name.lower() not in OF_CONNECTION}

    def _load(self, folder: Path, body: dict[str, Any]) -> None:
        """Pass on the load of a folder of this machine, with its files."""
        fields = {name: _text(value) for name, value in body.items() if name != "lora_path"}
        if self.server.model:
            fields = {"base_model": self.server.model, "confirm_base_model": "true"} | fields
        with ExitStack() as opened:
            files = [
                ("files", (path.name, opened.enter_context(path.open("rb"))))
                for path in adapter_files(folder)
            ]
            self._pass_on(LOAD, headers=PLAIN, data=fields, files=files)

    def _pass_on(self, path: str = "", **sent: Any) -> None:
        """Send the request to the API, and its answer to the loop."""
        api = self.server.api
        url = api.where.api_url + (path or self.path)
        begun = False
        try:
            with api.http.stream(self.command, url, **sent) as answer:
                begun = True
                self._stream(answer)
        except httpx.TransportError as error:
            self.close_connection = True
            if not begun:
                self._say(502, _error(f"{api.where.api_url} can't be reached: {error}"))
        except ConnectionError:  # the loop has hung up
            self.close_connection = True

    def _stream(self, answer: httpx.Response) -> None:
        sized = "content-length" in answer.headers
        self.send_response(answer.status_code)
        for name, text in answer.headers.multi_items():
            if name not in OF_CONNECTION or name == "content-length":
                self.send_header(name, text)
        if not sized:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in answer.iter_raw():
            self.wfile.write(part if sized else b"%x\r\n%s\r\n" % (len(part), part))
        if not sized:
            self.wfile.write(b"0\r\n\r\n")

    def _say(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *values: object) -> None:
        """Show nothing: a loop sends thousands of requests."""


def _folder_of(body: bytes) -> Path | None:
    """The folder of this machine that a load names, if it names one."""
    try:
        path = json.loads(body)["lora_path"]
        folder = Path(path)
        return folder if folder.is_dir() else None
    except (ValueError, KeyError, TypeError, OSError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _error(message: str) -> dict[str, Any]:
    """In OpenAI's shape."""
    fields = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return {"error": fields}
