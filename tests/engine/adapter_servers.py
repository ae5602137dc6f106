"""Servers that load adapters while they run, as vLLM 0.32 and SGLang do, or have those that they
were started with, as llama.cpp: addresses, fields, status codes and messages are theirs. An answer
is made of the weights of the adapter that is named."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from inference.content import FILES, WEIGHTS

BASE = "theirs"
S = TypeVar("S", bound="AdapterServer")


class Refused(Exception):
    """The server answers with this status and body."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(status, body)
        self.status, self.body = status, body


@dataclass
class AdapterServer:
    """vLLM."""

    below = "/v1"
    owner = "vllm"
    enabled: bool = True
    """Whether it was started so that it loads adapters."""
    lenient: bool = False
    """It answers as the base model where an adapter is not loaded."""
    loaded: dict[str, Path] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    _cached: set[tuple[str, ...]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.lower().partition("content-length: ")[2].partition("\r")[0] or 0)
            body = json.loads(await reader.readexactly(length) or b"{}")
            try:
                status, text = 200, self.answer(head.split()[1], body)
            except Refused as refused:
                status, text = refused.status, json.dumps(refused.body)
            data = text.encode()
            writer.write(
                f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
                .encode() + data
            )  # fmt: skip
            await writer.drain()
        finally:
            writer.close()

    def answer(self, path: str, body: dict[str, Any]) -> str:
        if path == "/v1/models":
            cards: list[dict[str, Any]] = [{"id": BASE, "owned_by": self.owner, "parent": None}]
            cards[0]["max_model_len"] = 512
            cards += [{"id": name, "owned_by": self.owner, "parent": BASE} for name in self.loaded]
            return json.dumps({"object": "list", "data": cards})
        if self.enabled and path == f"{self.below}/load_lora_adapter":
            return self.load(body["lora_name"], Path(body["lora_path"]))
        if self.enabled and path == f"{self.below}/unload_lora_adapter":
            return self.unload(body["lora_name"])
        if path in ("/v1/chat/completions", "/v1/completions"):
            self.bodies.append(body)
            try:
                name = self.named(body)
            except Refused:
                if not self.lenient:
                    raise
                name = ""
            return self.generated(body, name, chat="chat" in path)
        raise Refused(404, {"detail": "Not Found"})

    def load(self, name: str, path: Path) -> str:
        if name in self.loaded:
            raise self.error(
                400,
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True.",
            )
        self.keep(name, path, f"Loading lora {name} failed: No adapter found for <path>")
        return f"Success: LoRA adapter '{name}' added successfully."

    def keep(self, name: str, path: Path, otherwise: str) -> None:
        if not all((path / file).is_file() for file in FILES):
            raise self.error(404, otherwise)
        self.loaded[name] = path
        self.loads.append(name)

    def unload(self, name: str) -> str:
        if name not in self.loaded:
            raise self.error(404, f"The lora adapter '{name}' cannot be found.")
        del self.loaded[name]
        return f"Success: LoRA adapter '{name}' removed successfully."

    def named(self, body: dict[str, Any]) -> str:
        """The adapter that a request names; empty for the base model."""
        if (name := str(body["model"])) not in (BASE, *self.loaded):
            raise self.error(404, f"The model `{name}` does not exist. Valid aliases: {BASE}.")
        return "" if name == BASE else name

    def error(self, status: int, message: str) -> Refused:
        return Refused(status, {"error": {"message": message, "type": "X", "code": status}})

    def generated(self, body: dict[str, Any], name: str, *, chat: bool) -> str:
        weights = (self.loaded[name] / WEIGHTS).read_bytes() if name else b""
        asked = json.dumps(body["messages"] if chat else body["prompt"])
        voice = hashlib.sha256(weights + asked.encode()).hexdigest()
        words = [f"{voice[at : at + 4]} " for at in range(int(body["max_tokens"]))]
        prompt = len(asked.split())
        if body.get("echo"):
            return self.scored(body, prompt, -2.0 if name else -1.0)
        if not body.get("stream"):
            return json.dumps({"choices": [{"message": {"content": "".join(words)}}]})
        key = (str(body.get("cache_salt")), name, asked)
        cached, self._cached = prompt - 1 if key in self._cached else 0, {*self._cached, key}
        usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
        chunks = [
            {
                "choices": [
                    {"index": 0, "finish_reason": "length" if at == len(words) else None}
                    | ({"delta": {"content": word}} if chat else {"text": word})
                ],
                "usage": usage | {"completion_tokens": at},
            }
            for at, word in enumerate(words, 1)
        ]
        return "".join(f"data: {json.dumps(one)}\n\n" for one in chunks) + "data: [DONE]\n\n"

    def scored(self, body: dict[str, Any], prompt: int, value: float) -> str:
        choice: dict[str, Any] = {"logprobs": {"token_logprobs": [None, *[value] * prompt]}}
        if body.get("return_token_ids"):
            choice["prompt_token_ids"] = list(range(prompt))
        return json.dumps({"choices": [choice], "usage": {"prompt_tokens": prompt}})


class SGLangServer(AdapterServer):
    """SGLang."""

    below = ""
    owner = "sglang"

    def load(self, name: str, path: Path) -> str:
        if name in self.loaded:
            raise self.error(400, f"LoRA with name {name} already exists. Loaded LoRAs: odict_keys")
        self.keep(name, path, f"No such folder: '{path}'. Loaded LoRAs: lorikeet-f0.")
        return json.dumps({"success": True, "error_message": "", "loaded_adapters": {}})

    def unload(self, name: str) -> str:
        if name not in self.loaded:
            raise self.error(400, f"LoRA with name {name} does not exist. Loaded LoRAs: odict_keys")
        del self.loaded[name]
        return json.dumps({"success": True})

    def named(self, body: dict[str, Any]) -> str:
        name = str(body.get("lora_path") or "")
        if name and name not in self.loaded:
            message = f"Got LoRA adapter that has never been loaded: {name}\n"
            message += "All loaded adapters: dict_keys(['lorikeet-f0'])."
            raise Refused(400, {"object": "error", "message": message, "code": 400})
        return name

    def error(self, status: int, message: str) -> Refused:
        return Refused(400, {"success": False, "error_message": message, "loaded_adapters": None})


class LlamaServer(AdapterServer):
    """llama.cpp, started with the adapters in `loaded`, by digest. What it has cached of a prompt
    is some adapter's, whichever is asked for."""

    owner = "llamacpp"
    enabled = False

    def answer(self, path: str, body: dict[str, Any]) -> str:
        if path == "/lora-adapters":
            return json.dumps(self.listed())
        return super().answer(path, body)

    def listed(self) -> Any:
        return [
            {"id": at, "path": f"{folder.parent}/{name}.gguf", "scale": 1.0, "task_name": ""}
            for at, (name, folder) in enumerate(self.loaded.items())
        ]

    def named(self, body: dict[str, Any]) -> str:
        everywhere = dict.fromkeys(range(len(self.loaded)), 1.0)
        scales = {one["id"]: one["scale"] for one in body.get("lora", ())} or everywhere
        used = [name for at, name in enumerate(self.loaded) if scales.get(at, 0) > 0]
        assert len(used) < 2, "adapters are mixed"
        return "".join(used)

    def generated(self, body: dict[str, Any], name: str, *, chat: bool) -> str:
        asked = json.dumps(body["messages"] if chat else body["prompt"])
        if body.get("cache_prompt", True):
            name = next((one for _, one, it in self._cached if it == asked), name)
        self._cached.add(("", name, asked))
        if "logprobs" in body and not body.get("stream"):
            return self.scored(body, int(body["max_tokens"]), -2.0 if name else -1.0)
        return super().generated(body, name, chat=chat)

    def scored(self, body: dict[str, Any], prompt: int, value: float) -> str:
        content = [{"token": "x", "logprob": value}] * prompt
        return json.dumps({"choices": [{"text": "x", "logprobs": {"content": content}}]})


class SwiftServer(AdapterServer):
    """ms-swift, started with the adapters in `loaded`, by name."""

    owner = "swift"
    enabled = False

    def answer(self, path: str, body: dict[str, Any]) -> str:
        if path == "/v1/models":
            return json.dumps({"object": "list", "data": self.listed()})
        return super().answer(path, body)

    def listed(self) -> Any:
        return [{"id": name, "object": "model", "owned_by": "swift"} for name in self.names()]

    def names(self) -> list[str]:
        return [BASE, *self.loaded]

    def named(self, body: dict[str, Any]) -> str:
        if (name := str(body["model"])) not in self.names():
            message = f"`{name}` is not in the model_list: `{self.names()}`."
            raise Refused(400, {"message": message, "object": "error"})
        return "" if name == BASE else name

    def generated(self, body: dict[str, Any], name: str, *, chat: bool) -> str:
        if "logprobs" in body and not body.get("stream"):
            return self.scored(body, 3 if name else 4, -2.0 if name else -1.0)
        return super().generated(body, name, chat=chat)

    def scored(self, body: dict[str, Any], prompt: int, value: float) -> str:
        """An answer ends where it ends."""
        content = [{"token": "x", "logprob": value}] * prompt
        return json.dumps({"choices": [{"text": "x", "logprobs": {"content": content}}]})


@asynccontextmanager
async def listening(server: S) -> AsyncIterator[S]:
    """The server on a port of this machine."""
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
        yield server
