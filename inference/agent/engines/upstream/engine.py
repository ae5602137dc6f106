"""Serves the model of any OpenAI-compatible server: `vllm serve`, SGLang, llama.cpp, Ollama, a
cloud's endpoint.

Lorikeet's tenants, limits, fair queue and ledger stand in front of it. What the server can't do is
refused by name (`dialects`). Its answers can't move to another engine, because their tokens are not
known. It serves adapters if the server can load them while it runs (`adapters`), or those that the
server was started with (`started`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import PurePosixPath
from typing import Any, Self
from uuid import uuid4

import httpx
import msgspec
import structlog

from inference.agent.engines.assembly import Assembly
from inference.agent.engines.cache_news import News
from inference.agent.engines.engine import (
    UNBOUNDED_STEP,
    EngineNotStarted,
    EngineOutput,
    EngineProbedPrompt,
    EngineProbeReport,
    EngineWork,
    LoadReport,
    LocalAdapter,
    Meter,
)
from inference.agent.engines.probing import (
    PROBE_PROMPTS,
    PROBE_TOKENS,
    all_finite,
    largest_difference,
)
from inference.agent.engines.profile import POOLING, EngineProfile
from inference.agent.engines.upstream.adapters import UpstreamAdapters, is_missing, without_names
from inference.agent.engines.upstream.connection import KeyFile, beginning, client_of
from inference.agent.engines.upstream.dialects import BY_OPTION, DIALECTS, Dialect, dialect_of
from inference.agent.engines.upstream.finishing import Finishing
from inference.agent.engines.upstream.model import card_of, info_of, listed_models, with_adapters
from inference.agent.engines.upstream.reading import (
    CHARS_PER_TOKEN,
    MAX_EVENT,
    EventStream,
    ScoredPrompt,
    StreamReading,
    chat_text,
    error_of,
    scored_answer,
    scored_prompt,
    vectors_of,
)
from inference.agent.engines.upstream.started import (
    LISTED,
    FileAdapters,
    ListedAdapters,
    StartedAdapters,
)
from inference.errors import AdapterLoadFailed, EngineFailed, InvalidRequest
from inference.link.engine_info import EngineStats, ModelInfo
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.messages.as_chat import chat_of
from inference.operations.messages.messages import MESSAGES
from inference.operations.openai import OpenAIOperation, usage_body
from inference.operations.operation import Operation
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.pooling.pooling import MAX_ANSWER_BYTES, AnswerMetadata
from inference.operations.responses.responses import RESPONSES

log = structlog.get_logger(__name__)

ServerAdapters = UpstreamAdapters | StartedAdapters

SENT_AS: Mapping[Operation, OpenAIOperation[Any]] = {
    CHAT: CHAT,
    COMPLETION: COMPLETION,
    RESPONSES: CHAT,  # `ResponsesOperation.allowed` makes a chat
    MESSAGES: CHAT,
}
"""The operations of a server that generates, each with the one as which it gets it. A server that
pools has embeddings."""
MAX_NUMBERS = 5 * MAX_ANSWER_BYTES
"""Bytes of an answer with embeddings: as text, the numbers of the longest one that can be sent as
base64."""


class UpstreamEngine:
    """See `inference.agent.engines.engine.Engine` for the contract."""

    step_tokens = UNBOUNDED_STEP

    def __init__(
        self,
        client: httpx.AsyncClient,
        info: ModelInfo,
        model: str,
        dialect: Dialect,
        adapters: ServerAdapters | None,
        running: int,
    ) -> None:
        """`model` is the server's own name of the model, `running` how many requests it gets at
        once."""
        self.info, self.alive = info, True
        self._client, self._model, self._dialect = client, model, dialect
        self._adapters = adapters
        self._finishing = Finishing(running) if dialect.finishes else None
        self._running = 0
        self._totals = Meter()

    @classmethod
    async def start(
        cls,
        profile: EngineProfile,
        url: str,
        key: str | KeyFile,
        *,
        model: str = "",
        dialect: str = "",
        adapters: PurePosixPath | None = None,
        overflow: bool = False,
    ) -> Self:
        """Ask the server at `url` (with its `/v1`) for the model: the one that it calls `model`, by
        default that of the profile's name, or its only one. `adapters` is the folder of adapters as
        the server sees it; None: it gets none. With `overflow` the engine takes only what others
        are too busy for (`ModelInfo.overflow`).

        Raises:
            EngineNotStarted: it does not answer, or lacks the model or what adapters need, or its
                context is not known.
        """
        client = client_of(url, key)
        try:
            listed = await listed_models(client, url, model)
            card = card_of(listed, profile.name, model, url)
            spoken = BY_OPTION[dialect] if dialect else dialect_of(url, card)
            operations = [EMBEDDINGS] if profile.runner == POOLING else SENT_AS
            info, loading = info_of(profile, card, url, spoken, operations), None
            if adapters is not None:
                loading = _adapters(client, spoken, adapters, profile)
                await loading.take_over(str(card["id"]), [str(one["id"]) for one in listed])
                info = await with_adapters(info, profile, loading.only)
            info = msgspec.structs.replace(info, overflow=overflow)
            return cls(client, info, str(card["id"]), spoken, loading, profile.running)
        except BaseException as error:
            await client.aclose()
            if isinstance(error, EngineFailed):
                raise EngineNotStarted(f"{url}: {error.message}") from error
            raise

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """As the contract says; none, if the server gets none."""
        return await self._loading.load(adapter)

    async def unload(self, adapter: LocalAdapter) -> None:
        """As the contract says."""
        if self._adapters is not None:
            await self._adapters.unload(adapter)

    async def probe(
        self, adapter: LocalAdapter, rows: Sequence[list[int]] = ()
    ) -> EngineProbeReport:
        """As the contract says. The prompts are compared as plain texts, and the first one is asked
        as a chat. llama.cpp and ms-swift score no prompts: there the answers are compared."""
        loaded = await self.load(adapter)
        base = [await self._scored(prompt, None) for prompt in PROBE_PROMPTS]
        adapted = [await self._adapted(prompt, adapter) for prompt in PROBE_PROMPTS]
        pairs = list(zip(base, adapted, strict=True))
        compared = [_difference(*pair) for pair in pairs]
        finite = all_finite(compared)
        known = finite and all(one.ids for one in base)
        return EngineProbeReport(
            loaded.load_s,
            loaded.weight_bytes,
            max(compared) if finite else math.nan,
            finite,
            await self._chatted(None),
            await self._chatted(adapter),
            prompts=[_probed(*pair) for pair in pairs] if known else [],
            rows=[
                EngineProbedPrompt(
                    ids,
                    (await self._scored(ids, None)).values,
                    (await self._adapted(ids, adapter)).values,
                )
                for ids in (rows if self._dialect.adapters else [])
            ],
        )

    async def _adapted(self, prompt: str | list[int], adapter: LocalAdapter) -> ScoredPrompt:
        """With the adapter, once the server has answered without it.

        Raises:
            AdapterLoadFailed: it fails, as vLLM does where a log-probability is not a number.
        """
        try:
            return await self._scored(prompt, adapter)
        except EngineFailed as error:
            if error.__cause__ is not None or not self.alive:  # it says nothing about the adapter
                raise
            raise AdapterLoadFailed(
                f"The server failed on a prompt with the adapter {adapter.ref.name}."
            ) from error

    async def _scored(self, prompt: str | list[int], adapter: LocalAdapter | None) -> ScoredPrompt:
        """The log-probabilities of a prompt's tokens, or of those of the answer to it."""
        if self._dialect.adapters is None:
            asked = {"prompt": prompt, "logprobs": 1, "max_tokens": PROBE_TOKENS}
            asked |= {"temperature": 0, "ignore_eos": True}
            return scored_answer(await self._asked("completions", asked, adapter))
        asked = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1}
        if "return_token_ids" in self._dialect.fields:
            asked["return_token_ids"] = True
        return scored_prompt(await self._asked("completions", asked, adapter))

    async def _chatted(self, adapter: LocalAdapter | None) -> str:
        """The answer to the first prompt; empty if the model has no chats."""
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": PROBE_PROMPTS[0]}]}
        asked |= {"temperature": 0, "max_tokens": PROBE_TOKENS}
        try:
            return chat_text(await self._asked("chat/completions", asked, adapter))
        except InvalidRequest:
            return ""

    async def _asked(
        self, path: str, fields: dict[str, Any], adapter: LocalAdapter | None
    ) -> bytes:
        """A whole answer, of which nothing is counted or cached for anybody."""
        content = self._content(fields, adapter, uuid4().hex)
        async with self._answer(path, content, adapter) as answer:
            return await beginning(answer, MAX_EVENT)

    @property
    def _loading(self) -> ServerAdapters:
        if self._adapters is None:
            raise AdapterLoadFailed(
                f"{self.info.name} is served by another server, without adapters."
            )
        return self._adapters

    async def ping(self) -> None:
        """As the contract says."""
        await self._client.get("models")

    async def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        """As the contract says, always on the full path: it reads the server's stream, whether the
        client streams or not."""
        if work.operation.name not in self.info.operations:
            raise InvalidRequest("This model's server does not support this operation.")
        if work.operation is EMBEDDINGS:
            yield await self._embedded(work)
            return
        sent_as, fields = _sent_as(work), work.take_fields()
        if work.operation is MESSAGES:
            fields = chat_of(fields, self.info.max_model_len)
        assembly = None if fields.get("stream") else Assembly(sent_as)
        tagged = self._dialect.tagged_reasoning
        reading = StreamReading(sent_as, work.meter, _choices(fields), tagged=tagged)
        body = self._dialect.body(sent_as, fields)
        content = self._content(body, work.adapter, work.cache_salt)
        del fields, body
        self._running += 1
        try:
            path = sent_as.path.removeprefix("/v1/")
            source = self._events(path, content, work.adapter)
            if self._finishing is not None:
                source = self._finishing.events(source)
            async with aclosing(source) as events:
                async for data in events:
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

    async def _embedded(self, work: EngineWork) -> EngineOutput:
        """An answer with embeddings, in one piece."""
        fields = work.take_fields()
        inputs = len(EMBEDDINGS.texts(fields))
        content = self._content(self._dialect.embeddings(fields), work.adapter, work.cache_salt)
        self._running += 1
        try:
            async with self._answer("embeddings", content, work.adapter) as answer:
                body = await beginning(answer, MAX_NUMBERS + 5)
            EMBEDDINGS.check_bytes(len(body) // 5)
            vectors, tokens = await asyncio.to_thread(vectors_of, body, inputs)
        finally:
            self._running -= 1
        work.meter.is_estimated = not tokens
        work.meter.prompt_tokens = tokens or max(1, len(content) // CHARS_PER_TOKEN)
        self._totals.prompt_tokens += work.meter.prompt_tokens
        metadata = AnswerMetadata(
            EMBEDDINGS.answer_id(work.id), work.created, work.model, work.meter.prompt_tokens
        )
        whole = await asyncio.to_thread(EMBEDDINGS.plain_answer, fields, vectors, metadata)
        return EngineOutput(response=whole, finish_reason="stop")

    def _content(
        self, body: dict[str, Any], adapter: LocalAdapter | None, salt: str | None
    ) -> bytes:
        """The whole body for the server.

        Raises:
            AdapterLoadFailed: the adapter is not loaded.
        """
        body = body | {"model": self._model}
        if adapter is not None or self._adapters is not None:
            body |= self._loading.fields_of(adapter)
        if self._dialect.salted:
            body["cache_salt"] = salt
        return msgspec.json.encode(body)

    def _account(self, work: EngineWork, reading: StreamReading, body_bytes: int) -> None:
        if not reading.exact:
            reading.estimate_prompt(body_bytes)
        if work.meter.is_estimated:
            log.info("upstream_usage_estimated", request_id=work.id)
        self._totals.prompt_tokens += work.meter.prompt_tokens
        self._totals.cached_tokens += work.meter.cached_tokens
        self._totals.completion_tokens += work.meter.completion_tokens

    async def _events(
        self, path: str, content: bytes, adapter: LocalAdapter | None
    ) -> AsyncGenerator[bytes, None]:
        """The events of the server's answer. Leaving it closes the connection, which ends the
        request there.

        Raises:
            InferenceError: the server refuses the request, or fails.
        """
        events = EventStream()
        async with self._answer(path, content, adapter) as answer:
            async for piece in answer.aiter_bytes():
                for data in events.feed(piece):
                    yield data

    @asynccontextmanager
    async def _answer(
        self, path: str, content: bytes, adapter: LocalAdapter | None
    ) -> AsyncIterator[httpx.Response]:
        """The server's answer, its body not read yet. If the server has lost the adapter, that is
        loaded and the request sent once more.

        Raises:
            InferenceError: as `_events`.
        """
        headers = {"Content-Type": "application/json"}
        try:
            for again in (False, True):
                request = self._client.stream("POST", path, content=content, headers=headers)
                async with request as answer:
                    if answer.status_code == httpx.codes.OK:
                        await self._check_adapter(adapter)
                        yield answer
                        return
                    refusal = await beginning(answer)
                if adapter is None or not is_missing(adapter, refusal):
                    raise error_of(answer.status_code, without_names(refusal))
                if again:
                    raise AdapterLoadFailed(f"The adapter {adapter.ref.name} is not loaded.")
                log.warning("upstream_adapter_lost", adapter=adapter.ref.name)
                await self._check_adapter(adapter)
                await self._loading.reload(adapter)
        except httpx.ConnectError as error:  # no request can reach it: the agent starts anew
            self.alive = False
            raise EngineFailed("The upstream can't be reached.") from error
        except httpx.HTTPError as error:
            log.warning("upstream_failed", reason=str(error) or type(error).__name__)
            raise EngineFailed("The connection to the upstream broke.") from error

    async def _check_adapter(self, adapter: LocalAdapter | None) -> None:
        """Of an answer that has begun, or of a request whose adapter the server does not know.

        Raises:
            EngineFailed: the server has other adapters than before, or does not say.
        """
        if adapter is not None and not await self._loading.is_unchanged():
            self.alive = False  # it is started again, with the adapters that there are now
            raise EngineFailed("The upstream was started anew, with other adapters.")

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
        if self._finishing is not None:
            await self._finishing.close()
        await self._client.aclose()


def _adapters(
    client: httpx.AsyncClient, dialect: Dialect, folder: PurePosixPath, profile: EngineProfile
) -> ServerAdapters:
    if dialect.listed_adapters != (folder == LISTED):
        wanted = str(LISTED) if dialect.listed_adapters else "a folder"
        raise EngineNotStarted(
            f"--upstream-adapters is {folder}: for {dialect.name} it must be {wanted}"
        )
    if dialect.listed_adapters:
        return ListedAdapters(client)
    if dialect.file_adapters:
        return FileAdapters(client, folder)
    if dialect.adapters is None:
        *others, last = [one.name for one in DIALECTS if one.has_adapters]
        raise EngineNotStarted(
            f"adapters of {dialect.name} can't be served: --upstream-adapters is for "
            f"{', '.join(others)} and {last}"
        )
    return UpstreamAdapters(client, dialect.adapters, folder, profile.loaded_adapters)


def _difference(base: ScoredPrompt, adapted: ScoredPrompt) -> float:
    """Of two answers, one may have ended earlier."""
    both = min(len(base.values), len(adapted.values))
    return largest_difference(base.values[:both], adapted.values[:both])


def _probed(base: ScoredPrompt, adapted: ScoredPrompt) -> EngineProbedPrompt:
    return EngineProbedPrompt(base.ids, base.values, adapted.values)


def _sent_as(work: EngineWork) -> OpenAIOperation[Any]:
    """The operation as which the server gets a request.

    Raises:
        EngineFailed: another engine began it.
    """
    if work.resume is not None:
        raise EngineFailed("An answer that another engine began can't be continued upstream.")
    return SENT_AS[work.operation]


def _choices(fields: dict[str, Any]) -> int:
    """How many texts are asked for: `n` for each prompt."""
    prompt = fields.get("prompt")
    prompts = prompt if isinstance(prompt, list) else []
    several = len(prompts) if prompts and not isinstance(prompts[0], int) else 1
    return int(fields.get("n") or 1) * several
