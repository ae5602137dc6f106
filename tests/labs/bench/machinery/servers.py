"""Baselines for Lorikeet: a bare HTTP echo, and an OpenAI server on the same engine.

`python -m tests.labs.bench.machinery.servers echo|mock --port N` serves one, in uvicorn like the
gateway.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import aclosing

import uvicorn

from inference.agent.engines.engine import EngineWork, Meter
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.synthetic.engine import SyntheticEngine
from inference.errors import InferenceError
from inference.gateway.exchanges.exchange import EVENT_STREAM, Exchange, Receive, Scope, Send
from inference.ids import new_id
from inference.link.accounts import Usage
from inference.operations.chat import CHAT
from inference.operations.operation import Framing

MODEL = "bench"
ENGINE_OPTIONS = ["--engine", "synthetic", "--model", MODEL, "--max-num-seqs", "256"]
"""Options of `manage.py engine` for the engine that `engine` returns."""
MAX_BODY_BYTES = 1 << 20


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the request's body: the cost of HTTP alone."""
    exchange = Exchange(scope, receive, send)
    await exchange.reply(200, await exchange.body(MAX_BODY_BYTES))


class Mock:
    """An OpenAI-speaking server on a synthetic engine, with neither keys nor usage."""

    def __init__(self, engine: SyntheticEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            if exchange.method == "GET":  # /health, /v1/models
                await exchange.reply(200, b'{"object":"list","data":[{"id":"bench"}]}')
            else:
                await self._generate(exchange)
        except InferenceError as error:
            await exchange.fail(error)

    async def _generate(self, exchange: Exchange) -> None:
        call = CHAT.parse(await exchange.body(MAX_BODY_BYTES))
        framing = CHAT.framing(call, exchange.id, int(exchange.started_at))
        work = work_of(json.loads(call.take_body()), exchange.id)
        await (self._stream if call.stream else self._whole)(exchange, framing, work)

    async def _whole(self, exchange: Exchange, framing: Framing, work: EngineWork) -> None:
        async with aclosing(self._engine.generate(work)) as outputs:
            text = "".join([output.text async for output in outputs])
        await exchange.reply(200, framing.whole(text, "length", _usage(work.meter)))

    async def _stream(self, exchange: Exchange, framing: Framing, work: EngineWork) -> None:
        await exchange.begin(200, EVENT_STREAM)
        await exchange.write(framing.opening())
        async with aclosing(self._engine.generate(work)) as outputs:
            async for output in outputs:
                await exchange.write(framing.text(output.text))
        closing = framing.closing("length") + framing.ending(_usage(work.meter))
        await exchange.write(closing, more=False)


def work_of(body: dict[str, object], id: str = "") -> EngineWork:
    """A request as an agent would pass it to its engine."""
    return EngineWork(id or new_id(), CHAT, body, MODEL, salt="", created=int(time.time()))


def engine(tokens_per_second: float | None = None) -> SyntheticEngine:
    """The synthetic engine that `manage.py engine --engine synthetic` starts."""
    profile = EngineProfile.here(MODEL, max_num_seqs=256)
    return SyntheticEngine.of(profile, tokens_per_second=tokens_per_second or None)


def _usage(meter: Meter) -> Usage:
    return Usage(meter.prompt_tokens, meter.cached_tokens, meter.completion_tokens)


def main() -> None:
    """Serve until a signal arrives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("app", choices=["echo", "mock"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens-per-second", type=float, default=0.0)
    options = parser.parse_args()
    app = echo if options.app == "echo" else Mock(engine(options.tokens_per_second))
    uvicorn.run(
        app,
        port=options.port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
    )


if __name__ == "__main__":
    main()
