"""Real servers of others: `vllm serve`, and by `make upstreams` ms-swift, llama.cpp and
llama-cpp-python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from demo import BASE, EMBEDDING, TOOL_PARSER
from demo.smollm2 import base
from tests.labs.endpoint.sides import stop, wait
from tests.stack.running import ROOT, free_ports

LLAMA_CPP = ROOT / ".venv-clients" / "llama-cpp" / "bin" / "python"
MS_SWIFT = ROOT / ".venv-clients" / "ms-swift" / "bin" / "python"
LLAMA_SERVER = ROOT / ".venv-clients" / "llama-server"
"""llama.cpp's sources in `source`, with its converters, and what is built of them in `build`."""
CONTEXT = "2048"
SLOTS = 2
"""Adapters that `vllm_serve_adapters` has loaded at once."""


@contextmanager
def vllm_serve(scratch: Path, *more: str, **environment: str) -> Iterator[str]:
    """The tiny demo on plain vLLM; yields its address with /v1."""
    options = (
        "--served-model-name", "theirs", "--dtype", "float32", "--enforce-eager", "--block-size",
        "32", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64M",
        "--distributed-executor-backend", "uni", "--enable-prompt-tokens-details",
        "--enable-auto-tool-choice", "--tool-call-parser", TOOL_PARSER,
    )  # fmt: skip
    command = [sys.executable, "-m", "tests.labs.endpoint.plain_vllm", "serve", str(BASE), *options]
    with _running([*command, *more], scratch / "vllm.log", environment) as url:
        yield url


@contextmanager
def vllm_embeds(scratch: Path) -> Iterator[str]:
    """The demo that embeds, on plain vLLM."""
    command = [sys.executable, "-m", "tests.labs.endpoint.plain_vllm", "serve", str(EMBEDDING)]
    command += ["--served-model-name", "theirs", "--dtype", "float32", "--enforce-eager"]
    command += ["--runner", "pooling", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "64M"]
    with _running(command, scratch / "vllm.log") as url:
        yield url


@contextmanager
def vllm_serve_adapters(scratch: Path) -> Iterator[str]:
    """The same, which loads up to SLOTS adapters."""
    options = ("--enable-lora", "--max-loras", str(SLOTS), "--max-cpu-loras", str(SLOTS))
    with vllm_serve(scratch, *options, VLLM_ALLOW_RUNTIME_LORA_UPDATING="1") as url:
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
def llama_server(scratch: Path, *more: str, model: Path | None = None) -> Iterator[str]:
    """SmolLM2 as its package has it, or another model, on llama.cpp's own server."""
    model = model or base.fetch(scratch) / base.GGUF
    command = [str(LLAMA_SERVER / "build" / "bin" / "llama-server"), "--model", str(model)]
    command += ["--ctx-size", CONTEXT, "--parallel", "1", "--alias", "theirs", *more]
    command += [
        "--chat-template-file",
        str(base.TEMPLATE),
    ]  # with tools, unlike that of the package
    with _running(command, scratch / "llama-server.log") as url:
        yield url


@contextmanager
def ms_swift(scratch: Path) -> Iterator[str]:
    """SmolLM2 on `swift deploy`."""
    base.make(model := scratch / "model")
    with swift_deploy(scratch, model, {}) as url:
        yield url


@contextmanager
def swift_deploy(scratch: Path, model: Path, adapters: Mapping[str, Path]) -> Iterator[str]:
    """The model with these adapters, by name. `dummy` is its own chat template."""
    command = [str(MS_SWIFT), "-m", "swift.cli.deploy", "--model", str(model)]
    command += ["--model_type", "llama", "--template", "dummy", "--infer_backend", "transformers"]
    command += ["--served_model_name", "theirs", "--verbose", "false", "--log_interval", "-1"]
    command += ["--max_model_len", CONTEXT, "--max_length", CONTEXT]
    if adapters:
        command += ["--adapters", *(f"{name}={folder}" for name, folder in adapters.items())]
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with _running(command, scratch / "ms-swift.log", environment) as url:
        yield url


def as_gguf(model: Path, file: Path, adapter: Path | None = None) -> None:
    """Write the model, or the adapter of it, as llama.cpp's own converters do."""
    given = [str(model)] if adapter is None else ["--base", str(model), str(adapter)]
    name = f"convert_{'hf' if adapter is None else 'lora'}_to_gguf.py"
    command = [sys.executable, str(LLAMA_SERVER / "source" / name), "--outtype", "f32"]
    subprocess.run([*command, "--outfile", str(file), *given], check=True, capture_output=True)


@contextmanager
def _running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    port = free_ports(1)
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as out:
        env = {**os.environ, **(environment or {})}
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        wait(f"{url}/models", process, log)
        yield url
    finally:
        stop(process)
