"""A training loop against a running stack, with the requests that it would send to vLLM."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from demo import ADAPTERS, TENANTS
from inference.content import CONFIG, WEIGHTS
from lorikeet.api import Api
from lorikeet.connection import Connection
from tests.adapters.checks.test_archives import make_zip
from tests.client_cli.looping import looping
from tests.stack.asking import until
from tests.stack.running import Stack
from tests.stack.test_splits import changed

pytestmark = pytest.mark.stack

NAME = "policy"


def test_a_loop_samples_from_each_step_that_it_loads(stack: Stack, tmp_path: Path) -> None:
    with stack.manager(stack.key(TENANTS[0].slug)) as client:
        steps = [ADAPTERS["support"], changed(tmp_path / "second")]
        for number, folder in enumerate(steps):
            loaded = _load(client, _stored(client, folder), load_inplace=number > 0)
            assert loaded.text == f"Success: LoRA adapter '{NAME}' added successfully."
            _await(client, _header(loaded))
        earlier = _header(_load(client, _stored(client, steps[0]), load_inplace=True))
        _await(client, earlier)
        by_digest = _asked(client, model=earlier)
        assert by_digest.status_code == 200 and _header(by_digest) == earlier
        gone = client.post("/v1/unload_lora_adapter", json={"lora_name": NAME})
        assert gone.text == f"Success: LoRA adapter '{NAME}' removed successfully."
        until(lambda: _asked(client).status_code == 404)
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": NAME}).status_code == 404


def test_a_loop_that_names_a_folder_of_its_machine(stack: Stack) -> None:
    """Behind `lorikeet loop`, without a key."""
    api = Api(Connection(stack.console_url, stack.url, stack.key(TENANTS[0].slug)))
    with api.http, looping(api) as client:
        assert client.get("/health").status_code == 200
        loaded = _load(client, str(ADAPTERS["support"]), load_inplace=False)
        _await(client, _header(loaded))
        asked = {"model": NAME, "prompt": [1, 2, 3], "max_tokens": 2, "stream": True}
        assert "data: [DONE]" in client.post("/v1/completions", json=asked).text
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": NAME}).is_success


def _stored(client: httpx.Client, folder: Path) -> str:
    """The id of a new file with the adapter in this folder."""
    data = make_zip([(name, (folder / name).read_bytes()) for name in (CONFIG, WEIGHTS)])
    sent = {"file": ("step.zip", data)}
    made = client.post("/v1/files", data={"purpose": "user_data"}, files=sent)
    assert made.status_code == 200, made.text
    id: str = made.json()["id"]
    return id


def _load(client: httpx.Client, path: str, *, load_inplace: bool) -> httpx.Response:
    body = {"lora_name": NAME, "lora_path": path, "load_inplace": load_inplace}
    answer = client.post("/v1/load_lora_adapter", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def _asked(client: httpx.Client, model: str = NAME) -> httpx.Response:
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": model, "messages": messages, "max_tokens": 2}
    return client.post("/v1/chat/completions", json=body)


def _await(client: httpx.Client, version: str) -> None:
    """Ask until this version answers, which takes as long as gateways need to hear of it."""
    until(lambda: _header(_asked(client)) == version)


def _header(answer: httpx.Response) -> str:
    found: str = answer.headers.get("x-lorikeet-adapter", "")
    return found
