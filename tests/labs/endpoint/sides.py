"""The two servers: plain `vllm serve`, and a complete Lorikeet with the same models."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from demo import EMBEDDING_NAME, TENANTS, TOOL_PARSER
from tests.labs.endpoint.suite import Served
from tests.stack.asking import until
from tests.stack.running import ROOT, free_ports, up

READY_S = 1800.0
STOP_S = 60.0
ANY_KEY = "none"
"""Plain vLLM is started without keys, so it takes any."""

GENERATING = (
    "--enable-auto-tool-choice", "--tool-call-parser", TOOL_PARSER, "--enable-lora",
    "--max-loras", "4", "--enable-prompt-tokens-details", "--enable-tokenizer-info-endpoint",
    "--kv-cache-memory-bytes", "500M",
)  # fmt: skip
EMBEDDING = ("--runner", "pooling", "--kv-cache-memory-bytes", "16M")
SHORT = ("--override-generation-config", '{"max_new_tokens": 128}')
"""Answers end here unless a test asks for more: a small model may go on to its context's end."""
BOTH = (
    *SHORT, "--dtype", "float32", "--enforce-eager", "--block-size", "32", "--max-num-seqs", "32",
    "--distributed-executor-backend", "uni",
)  # fmt: skip
SWITCHES = {
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
"""What its tests switch on, beside the options above."""


@dataclass(frozen=True, slots=True)
class Side:
    """A running server."""

    name: str
    url: str
    key: str


@contextmanager
def plain(served: Sequence[Served], logs: Path) -> Iterator[dict[str, Side]]:
    """`vllm serve` for each of the models, by the model's name."""
    with ExitStack() as stack:
        started = {one.name: stack.enter_context(_vllm_serve(one, logs)) for one in served}
        for name, (side, process) in started.items():
            wait(f"{side.url}/health", process, logs / f"{name}.log")
        yield {name: side for name, (side, _) in started.items()}


@contextmanager
def _vllm_serve(served: Served, logs: Path) -> Iterator[tuple[Side, subprocess.Popen[bytes]]]:
    port = free_ports(1)
    command = [sys.executable, "-m", "tests.labs.endpoint.plain_vllm", "serve", str(served.base)]
    command += ["--served-model-name", served.name, "--host", "127.0.0.1", "--port", str(port)]
    command += [*BOTH, *(GENERATING if served.adapters else EMBEDDING)]
    if served.adapters:
        command += ["--lora-modules", *(f"{name}={at}" for name, at in served.adapters.items())]
    with (logs / f"{served.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | SWITCHES, stdout=log, stderr=log
        )
    try:
        yield Side("plain vLLM", f"http://127.0.0.1:{port}", ANY_KEY), process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server, and what is left of its processes."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    process.kill()
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()


def wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers.

    Raises:
        TimeoutError: it does not, or has ended; the message is the end of its log.
    """
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(url, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(1)
    raise TimeoutError(log.read_text()[-4000:])


@contextmanager
def lorikeet(served: Sequence[Served], var: Path) -> Iterator[dict[str, Side]]:
    """The demo of `make up`, which serves all of the models, by the model's name."""
    names = {one.name for one in served}
    embeds = str(int(EMBEDDING_NAME in names))
    options = shlex.join(SHORT)
    with up(var, LORIKEET_EMBEDDING_ENGINES=embeds, LORIKEET_ENGINE_OPTIONS=options) as stack:
        side = Side("Lorikeet", stack.url, stack.key(TENANTS[0].slug))
        with stack.client(side.key) as client:
            until(lambda: all(client.get(f"/v1/models/{name}").is_success for name in names))
        yield dict.fromkeys(names, side)
