"""Serves the model of any OpenAI-compatible server: `vllm serve`, SGLang, llama.cpp, Ollama, a
cloud's endpoint.

Lorikeet's tenants, limits, fair queue and ledger stand in front of it. What the server can't do is
refused by name (`dialects`). Its answers can't move to another engine, because their tokens are not
known, and it serves no adapters.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import httpx
import msgspec
import structlog

from inference.agent.engines.assembly import Assembly
from inference.agent.engines.cache_news import News
from inference.agent.engines.engine import (
    UNBOUNDED_STEP,
    EngineNotStarted,
    EngineOutput,
    EngineProbeReport,
    EngineWork,
    LoadReport,
    LocalAdapter,
    Meter,
)
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.upstream.dialects import BY_NAME, Dialect, dialect_of
from inference.agent.engines.upstream.reading import EventStream, StreamReading, error_of
from inference.errors import AdapterLoadFailed, EngineFailed, InvalidRequest
from inference.link.engine_info import EngineStats, ModelInfo
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.messages.as_chat import chat_of
from inference.operations.messages.messages import MESSAGES
from inference.operations.openai import OpenAIOperation, usage_body
from inference.operations.operation import Operation
from inference.operations.responses.responses import RESPONSES

log = structlog.get_logger(__name__)

CONNECT_S = 5.0
SILENCE_S = 600.0
"""How long the server may say nothing before its answer counts as lost: it may queue requests."""
MAX_ERROR = 64 << 10
"""Bytes of an error's body that are read."""
SENT_AS: Mapping[Operation, OpenAIOperation[Any]] = {
    CHAT: CHAT,
    COMPLETION: COMPLETION,
    RESPONSES: CHAT,  # `ResponsesOperation.allowed` makes a chat
    MESSAGES: CHAT,
}
"""The operations that are served, each with the one as which the server gets it."""
SHOWN = 5
"""Models that an error names."""


class UpstreamEngine:
    """See `inference.agent.engines.engine.Engine` for the contract."""

    step_tokens = UNBOUNDED_STEP

    def __init__(
        self, client: httpx.AsyncClient, info: ModelInfo, model: str, dialect: Dialect
    ) -> None:
        """`model` is the server's own name of the model."""
        self.info, self.alive = info, True
        self._client, self._model, self._dialect = client, model, dialect
        self._running = 0
        self._totals = Meter()

    @classmethod
    async def start(
        cls,
        profile: EngineProfile,
        url: str,
        key: str,
        *,
        model: str = "",
        dialect: str = "",
        overflow: bool = False,
    ) -> Self:
        """Ask the server at `url` (with its `/v1`) for the model: the one that it calls `model`, by
        default that of the profile's name, or its only one. With `overflow` the engine takes only
        what others are too busy for (`ModelInfo.overflow`).

        Raises:
            EngineNotStarted: it does not answer, or lacks the model, or its context is not known.
        """
        client = httpx.AsyncClient(
            base_url=f"{url.rstrip('/')}/",
            headers={"Accept-Encoding": "identity"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        )
        try:
            card = _card(await _listed(client, url), profile.name, model, url)
            spoken = BY_NAME[dialect] if dialect else dialect_of(card)
            info = _info(profile, card, url, spoken)
            info = msgspec.structs.replace(info, overflow=overflow)
            return cls(client, info, str(card["id"]), spoken)
        except BaseException:
            await client.aclose()
            raise

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """None is served.

        Raises:
            AdapterLoadFailed: always.
        """
        raise AdapterLoadFailed(f"{self.info.name} is served by another server, without adapters.")

    async def unload(self, adapter: LocalAdapter) -> None:
        """As the contract says; there is none."""

    async def probe(
        self, adapter: LocalAdapter, rows: Sequence[list[int]] = ()
    ) -> EngineProbeReport:
        """As `load`."""
        await self.load(adapter)
        raise AssertionError("load raises")

    async def ping(self) -> None:
        """As the contract says."""
        await self._client.get("models")

    async def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        """As the contract says, always on the full path: it reads the server's stream, whether the
        client streams or not."""
        sent_as, fields = _sent_as(work), work.take_fields()
        if work.operation is MESSAGES:
            fields = chat_of(fields, self.info.max_model_len)
        assembly = None if fields.get("stream") else Assembly(sent_as)
        reading = StreamReading(sent_as, work.meter, _choices(fields))
        content = self._content(work, sent_as, fields)
        del fields
        self._running += 1
        try:
            async for data in self._events(sent_as.path.removeprefix("/v1/"), content):
                chunk = reading.chunk(data)
                chunks: tuple[bytes, ...] = ()
                if chunk is not None and assembly is not None:
                    assembly.add(chunk)
                elif chunk is not None:
                    chunks = (msgspec.json.encode(chunk | work.identity),)
                yield EngineOutput(chunks=chunks, tokens=reading.take_tokens())
            reason, response = reading.ended(), None
            if assembly is not None:
                whole = assembly.body() | work.identity | {"usage": usage_body(work.meter)}
                response = msgspec.json.encode(whole)
            yield EngineOutput(response=response, finish_reason=reason)
        finally:
            self._running -= 1
            self._account(work, reading, len(content))

    def _content(
        self, work: EngineWork, sent_as: OpenAIOperation[Any], fields: dict[str, Any]
    ) -> bytes:
        """The body for the server.

        Raises:
            InvalidRequest: it can't do what the fields ask for.
        """
        body = self._dialect.body(sent_as, fields) | {"model": self._model}
        if self._dialect.salted:
            body["cache_salt"] = work.salt
        return msgspec.json.encode(body)

    def _account(self, work: EngineWork, reading: StreamReading, body_bytes: int) -> None:
        if not reading.exact:
            reading.estimate_prompt(body_bytes)
            log.info("upstream_usage_estimated", request_id=work.id)
        self._totals.prompt_tokens += work.meter.prompt_tokens
        self._totals.cached_tokens += work.meter.cached_tokens
        self._totals.completion_tokens += work.meter.completion_tokens

    async def _events(self, path: str, content: bytes) -> AsyncGenerator[bytes, None]:
        """The events of the server's answer. Leaving it closes the connection, which ends the
        request there.

        Raises:
            InferenceError: the server refuses the request, or fails.
        """
        headers = {"Content-Type": "application/json"}
        request = self._client.stream("POST", path, content=content, headers=headers)
        events = EventStream()
        try:
            async with request as answer:
                if answer.status_code != httpx.codes.OK:
                    raise error_of(answer.status_code, await _beginning(answer))
                async for piece in answer.aiter_bytes():
                    for data in events.feed(piece):
                        yield data
        except httpx.ConnectError as error:  # no request can reach it: the agent starts anew
            self.alive = False
            raise EngineFailed("The upstream can't be reached.") from error
        except httpx.HTTPError as error:
            log.warning("upstream_failed", reason=str(error) or type(error).__name__)
            raise EngineFailed("The connection to the upstream broke.") from error

    def stats(self) -> EngineStats:
        """As the contract says, of this process's requests; others' are not known."""
        return EngineStats(
            running=self._running,
            prompt_tokens=self._totals.prompt_tokens,
            completion_tokens=self._totals.completion_tokens,
            cached_tokens=self._totals.cached_tokens,
        )

    def cache_news(self) -> list[News] | None:
        """Never."""
        return None

    async def close(self) -> None:
        """As the contract says."""
        self.alive = False
        await self._client.aclose()


async def _listed(client: httpx.AsyncClient, url: str) -> list[dict[str, Any]]:
    """The models that the server lists."""
    try:
        answer = await client.get("models", timeout=CONNECT_S)
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise EngineNotStarted(f"{url}/models does not answer: {reason}") from error
    if answer.status_code in (401, 403):
        raise EngineNotStarted(
            f"{url}/models answers {answer.status_code}: LORIKEET_UPSTREAM_KEY is missing or wrong"
        )
    with suppress(ValueError, TypeError, KeyError):
        if answer.is_success and isinstance(listed := answer.json()["data"], list):
            return [one for one in listed if isinstance(one, dict) and "id" in one]
    raise EngineNotStarted(
        f"{url}/models answers {answer.status_code}, not with a list of models: the address must "
        "include /v1"
    )


def _card(listed: list[dict[str, Any]], name: str, model: str, url: str) -> dict[str, Any]:
    found = next((one for one in listed if one["id"] == (model or name)), None)
    if found is None and not model and len(listed) == 1:
        return listed[0]
    if found is None:
        there = ", ".join(str(one["id"]) for one in listed[:SHOWN]) or "none"
        raise EngineNotStarted(
            f"{url} has no model {model or name!r}: set --upstream-model to one of its own: {there}"
        )
    return found


def _info(profile: EngineProfile, card: dict[str, Any], url: str, dialect: Dialect) -> ModelInfo:
    length = profile.max_model_len or _length(card)
    if length is None:
        raise EngineNotStarted(
            f"{url} does not say how long the context of {card['id']} is: set --max-model-len"
        )
    lacks = [f"{profile.name} is served by {dialect.name}: its answers don't move, and it has no "
             "adapters."]  # fmt: skip
    if not dialect.salted:
        lacks.append(f"{dialect.name} may share its prefix cache between tenants.")
    return ModelInfo(
        name=profile.name,
        max_model_len=length,
        max_loras=0,
        max_lora_rank=0,
        kv_tokens=length * profile.running,
        modules={},
        engine="upstream",
        revision=hashlib.sha256(f"{url}\n{card['id']}\n{dialect.name}".encode()).hexdigest(),
        engine_version=dialect.name,
        operations=[one.name for one in SENT_AS],
        parsers={"tool": dialect.name} if "tools" in dialect.fields else {},
        structured_outputs=dialect.schemas,
        resumes=False,
        degraded=lacks,
    )


def _length(card: dict[str, Any]) -> int | None:
    """The model's context in tokens: vLLM's and SGLang's field, or llama.cpp's."""
    meta = card.get("meta")
    told = card.get("max_model_len") or (meta.get("n_ctx_train") if isinstance(meta, dict) else 0)
    return told if isinstance(told, int) and 0 < told < 1 << 31 else None


def _sent_as(work: EngineWork) -> OpenAIOperation[Any]:
    """The operation as which the server gets a request.

    Raises:
        InferenceError: it can't.
    """
    if work.adapter is not None:
        raise AdapterLoadFailed(f"The adapter {work.adapter.ref.name} is not loaded.")
    if work.resume is not None:
        raise EngineFailed("An answer that another engine began can't be continued upstream.")
    if (sent_as := SENT_AS.get(work.operation)) is None:
        raise InvalidRequest("This model's server does not support this operation.")
    return sent_as


def _choices(fields: dict[str, Any]) -> int:
    """How many texts are asked for: `n` for each prompt."""
    prompt = fields.get("prompt")
    prompts = prompt if isinstance(prompt, list) else []
    several = len(prompts) if prompts and not isinstance(prompts[0], int) else 1
    return int(fields.get("n") or 1) * several


async def _beginning(answer: httpx.Response) -> bytes:
    body = b""
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > MAX_ERROR:
            break
    return body[:MAX_ERROR]
