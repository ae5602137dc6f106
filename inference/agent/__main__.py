"""`python -m inference.agent`: one engine agent process."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import structlog
import uvloop

from inference import tracing
from inference.agent import runtime_folder
from inference.agent.adapters.store import AdapterStore, HttpFetch
from inference.agent.agent import Agent
from inference.agent.engines.engine import Engine, EngineNotStarted
from inference.agent.engines.profile import RUNNERS, SLEEPS, BadProfile, EngineProfile
from inference.agent.engines.profiles.options import (
    ProfileParser,
    add_to,
    on_this_machine,
    settings_of,
)
from inference.agent.engines.sleeping import Sleeper, SleepingEngine
from inference.agent.engines.upstream.connection import KeyFile
from inference.agent.engines.upstream.dialects import BY_OPTION
from inference.agent.engines.upstream.engine import UpstreamEngine
from inference.agent.engines.upstream.started import LISTED
from inference.agent.failures import EngineFailures
from inference.agent.jobs.kept_answers import KEPT_BYTES
from inference.agent.journal import shared
from inference.agent.journal.files import JournalFailed
from inference.agent.journal.journal import Journal
from inference.link.wire import MAX_BODY_BYTES
from inference.process import announce, environ, gc_tuning, logs
from inference.process.environ import BadSetting
from inference.shared_capacity import TENANT_SHARE

log = structlog.get_logger(__name__)

Start = Callable[[argparse.Namespace, EngineProfile], Awaitable[Engine]]

EXIT_ENGINE_DIED = 70
ALWAYS_SO = {"enable_lora": True, "enable_prefix_caching": True, "trust_remote_code": False}
"""Engine arguments that Lorikeet sets itself, and that people pass to `vllm serve` as well."""
SLEEP_AFTER_S = 300.0
TELL_S = 3.0
"""How long a gateway may take to hear why the engine did not start."""
MAX_ID = 255
"""Characters; the ledger has no room for more, so nothing could be billed."""


def main(arguments: list[str] | None = None, start: Start | None = None) -> None:
    """Run until the engine dies or a signal comes; a bad setting ends the process with one line.

    `start` makes the engine; by default it is the one that the options ask for.
    """
    try:
        options = parsed(arguments)
        options.credential = environ.secret("LORIKEET_ENGINE_CREDENTIAL")
        profile = on_this_machine(options, profile_of(options))
        logs.configure(options.id, options.log_level)
        tracing.asked()  # a bad setting fails now, not after the model is loaded
        if options.journals is None:
            journal = Journal.open(options.journal_dir)
        else:
            options.journal_dir, journal = shared.take(options.journals)
        with (
            closing(journal),
            runtime_folder.used(options.journal_dir),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            try:
                status = runner.run(serve(options, profile, journal, start or start_engine))
            except (BadProfile, EngineNotStarted) as error:
                _tell_gateways(options, str(error))
                raise
            if options.journals is not None and status == 0:
                shared.leave(options.journal_dir, journal)
    except (BadSetting, BadProfile, EngineNotStarted, JournalFailed) as error:
        log.debug("engine_not_started", exc_info=error)
        sys.exit(f"lorikeet engine: {error}")
    sys.exit(status)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The options; `extra` also has what flags of vLLM's own set.

    Raises:
        BadProfile: a flag is neither ours nor vLLM's, or one of vLLM's has a wrong value.
    """
    whole = parser()
    options, others = whole.parse_known_args(arguments)
    if others and options.engine == "vllm":
        from inference.agent.engines.vllm.flags import values_of

        set_anyway = ALWAYS_SO.items()
        given = {k: v for k, v in values_of(others).items() if (k, v) not in set_anyway}
        options.extra = options.extra | given
    elif others:
        whole.error(f"unrecognized arguments: {' '.join(others)}")
    return options


def _tell_gateways(options: argparse.Namespace, cause: str) -> None:
    """Say why the engine did not start, for the console; a gateway that does not answer misses
    it."""
    headers = {"Authorization": f"Bearer {options.credential}"}
    report = {"engine": options.id, "cause": cause}
    for url in environ.base_urls(options.gateway):
        try:
            httpx.post(
                f"{url}/engine/failed",
                json=report,
                headers=headers,
                timeout=TELL_S,
                trust_env=False,
            )
        except httpx.HTTPError as error:
            log.info("failure_not_told", gateway=url, reason=str(error))


def _default(name: str, fallback: str | None = None) -> str | None:
    return os.environ.get(name) or fallback


def parser() -> argparse.ArgumentParser:
    """Every option; its default comes from the environment if that sets one."""
    whole = ProfileParser(
        prog="manage.py engine",
        description=(
            "Run one engine agent, which embeds vLLM with one base model and connects to "
            "every gateway. Its credential is read from LORIKEET_ENGINE_CREDENTIAL only. After the "
            "first SIGTERM or Ctrl-C it accepts no new requests and lets running ones "
            "finish; the second ends it at once."
        ),
        epilog=(
            "vLLM's own engine arguments are taken as `vllm serve` takes them, such as --seed 7 or "
            "--kv-cache-dtype fp8."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = whole.add_argument
    add(
        "--gateway",
        default=_default("LORIKEET_GATEWAY_URL", "http://127.0.0.1:8000"),
        metavar="URL",
        help=(
            "base URLs of one or more gateways, separated by commas; the agent learns of "
            "the others from them (LORIKEET_GATEWAY_URL)"
        ),
    )
    add(
        "--id",
        type=_engine_id,
        default=default_id(),
        help="this engine's name in logs, usage and the console",
    )
    add(
        "--engine",
        choices=["vllm", "upstream", "synthetic"],
        default="vllm",
        help=(
            "`upstream` serves the model of another OpenAI-compatible server; `synthetic` "
            "generates made-up text, only for tests and benchmarks of gateways"
        ),
    )
    add(
        "--cache-dir",
        type=Path,
        default=Path(_default("LORIKEET_ADAPTER_CACHE_DIR", "var/cache") or ""),
        help="folder for fetched adapters (LORIKEET_ADAPTER_CACHE_DIR)",
    )
    add(
        "--cache-bytes",
        type=environ.parse_size,
        default=20 << 30,
        help="maximum size of that folder, such as 20G",
    )
    add(
        "--journal-dir",
        type=Path,
        default=Path(_default("LORIKEET_ENGINE_JOURNAL_DIR", "var/journal") or ""),
        help=(
            "folder for this engine's journal, the source of bills; it must outlive the "
            "process (LORIKEET_ENGINE_JOURNAL_DIR)"
        ),
    )
    add(
        "--journals",
        type=Path,
        default=_default("LORIKEET_ENGINE_JOURNALS"),
        metavar="FOLDER",
        help=(
            "instead of --journal-dir, a folder shared by several engines with one "
            "credential: each takes over a journal that is no longer in use or creates "
            "one, and deletes it when everything is billed (LORIKEET_ENGINE_JOURNALS)"
        ),
    )
    add(
        "--max-unbilled",
        type=int,
        default=100_000,
        help="how many ended requests may wait for the ledger before new requests are refused",
    )
    add(
        "--drain",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help=(
            "how long to wait for running requests at shutdown; then gateways move the "
            "rest to other engines"
        ),
    )
    add(
        "--sleep-after",
        type=float,
        metavar="SECONDS",
        help=(
            "of an engine that can sleep (--profile sleep): how long it must have had nothing to "
            f"do; by default {SLEEP_AFTER_S:g} (LORIKEET_ENGINE_SLEEP_AFTER_S)"
        ),
        default=_default("LORIKEET_ENGINE_SLEEP_AFTER_S"),
    )
    add(
        "--hung-after",
        type=_patience,
        default=_default("LORIKEET_ENGINE_HUNG_AFTER_S", "300"),
        metavar="SECONDS",
        help=(
            "restart the engine if it is busy but completes no step for this long; 0: "
            "never. Must exceed its longest step, which may include compilation "
            "(LORIKEET_ENGINE_HUNG_AFTER_S)"
        ),
    )
    add(
        "--kept-answers",
        type=environ.parse_size,
        default=KEPT_BYTES,
        metavar="SIZE",
        help=(
            "memory for answers with an idempotency key or of the playground, which "
            "continue when their gateway is lost; at most a quarter for each tenant"
        ),
    )
    add(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default=_default("LORIKEET_LOG_LEVEL", "info"),
        help="lowest severity to log (LORIKEET_LOG_LEVEL)",
    )
    _add_queue(whole.add_argument_group("queue in front of the engine").add_argument)
    add_to(whole.add_argument_group("named engine profile").add_argument)
    _add_profile(whole.add_argument_group("engine profile (passed through to vLLM)").add_argument)
    _add_upstream(whole.add_argument_group("upstream engine").add_argument)
    _add_synthetic(whole.add_argument_group("synthetic engine").add_argument)
    return whole


def default_id() -> str:
    """An engine id that is new at each start, even where containers share a host name and pids, and
    tells where the engine runs."""
    return f"{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(3)}"


def _engine_id(text: str) -> str:
    if not 0 < len(text) <= MAX_ID:
        raise argparse.ArgumentTypeError(f"it must have 1 to {MAX_ID} characters")
    return text


def _patience(text: str) -> float:
    if not 0 <= (seconds := float(text)) < math.inf:
        raise argparse.ArgumentTypeError("it must be a number of seconds of at least 0")
    return seconds


def _add_queue(add: Callable[..., Any]) -> None:
    add(
        "--max-queued",
        type=int,
        default=1024,
        help="how many requests may wait; further ones are refused",
    )
    add(
        "--max-queued-per-tenant",
        type=int,
        default=256,
        help="how many requests of one tenant may wait",
    )
    add(
        "--max-queued-bytes",
        type=environ.parse_size,
        default=256 << 20,
        metavar="SIZE",
        help="memory for the bodies of waiting requests; at most a quarter for each tenant",
    )
    add(
        "--reserved",
        type=int,
        metavar="SEQUENCES",
        help=(
            "how many of the concurrent sequences are reserved for tenants that have few; "
            "by default an eighth"
        ),
    )
    add(
        "--slots-per-tenant",
        type=int,
        metavar="SLOTS",
        help=(
            "adapter slots that one tenant may occupy while another waits for one; by "
            "default half of them"
        ),
    )
    add(
        "--patience",
        type=float,
        default=0.25,
        metavar="SECONDS",
        help="how long requests for adapters in use may overtake one that waits for a slot",
    )
    add(
        "--batch-patience",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long a batch request waits behind interactive ones at most",
    )


def queue_options(options: argparse.Namespace, running: int, max_loras: int) -> dict[str, Any]:
    """The queue's settings for an engine that runs `running` requests at once.

    Raises:
        BadProfile: a value is not allowed.
    """
    reserved = running // 8 if options.reserved is None else options.reserved
    slots = max(1, max_loras // 2) if options.slots_per_tenant is None else options.slots_per_tenant
    if not 0 <= reserved < running:
        raise BadProfile(f"reserved is {reserved}: it must be from 0 to {running - 1}")
    for name in ("max_queued", "max_queued_per_tenant", "max_unbilled"):
        if (value := getattr(options, name)) < 1:
            raise BadProfile(f"{name} is {value}: it must be at least 1")
    if (least := TENANT_SHARE * MAX_BODY_BYTES) > options.max_queued_bytes:
        raise BadProfile(
            f"max_queued_bytes is {options.max_queued_bytes}: it must be at least {least}, so that "
            "a tenant's quarter holds the longest body"
        )
    if slots < 1:
        raise BadProfile(f"slots_per_tenant is {slots}: it must be at least 1")
    return {
        "max_queued": options.max_queued,
        "max_queued_per_tenant": options.max_queued_per_tenant,
        "max_queued_bytes": options.max_queued_bytes,
        "reserved": reserved,
        "slots_per_tenant": slots,
        "patience_s": options.patience,
        "batch_patience_s": options.batch_patience,
    }


def _add_profile(add: Callable[..., Any]) -> None:
    add(
        "--model",
        default=_default("LORIKEET_MODEL"),
        help="Hugging Face name or local folder (LORIKEET_MODEL)",
    )
    add(
        "--served-model-name",
        "--served-name",
        dest="served_name",
        default=_default("LORIKEET_MODEL_NAME", ""),
        help="its name for clients; by default the last part of --model (LORIKEET_MODEL_NAME)",
    )
    add(
        "--runner",
        choices=RUNNERS,
        default=_default("LORIKEET_ENGINE_RUNNER"),
        help=(
            "`generate` texts, or embed and score them with `pooling`; by default "
            "determined by the model's files (LORIKEET_ENGINE_RUNNER)"
        ),
    )
    add("--dtype", help="float32, bfloat16, float16 or auto")
    add("--max-model-len", type=int, help="maximum length of prompt and answer together, in tokens")
    add("--max-loras", type=int, default=4, help="adapter slots: distinct adapters in one batch")
    add("--max-cpu-loras", type=int, default=16, help="adapters loaded at once")
    add("--max-lora-rank", type=int, default=16, help="highest supported adapter rank")
    add("--max-num-seqs", type=int, help="maximum number of concurrent sequences")
    add("--max-num-batched-tokens", type=int, help="maximum number of tokens in one engine step")
    add(
        "--kv-cache-memory-bytes",
        "--kv-bytes",
        type=environ.parse_size,
        dest="kv_cache_memory_bytes",
        help="size of the KV cache, such as 2.5G; without a GPU by default what 16 texts need",
    )
    add("--tensor-parallel-size", type=int, default=1, help="GPUs that share each layer")
    add(
        "--pipeline-parallel-size", type=int, default=1, help="groups of GPUs that share the layers"
    )
    add("--quantization", help="vLLM's name of the quantization method")
    add("--speculative-config", type=json.loads, help="JSON, in vLLM's format")
    add(
        "--tool-call-parser",
        "--tool-parser",
        dest="tool_parser",
        default=_default("LORIKEET_TOOL_PARSER"),
        help="vLLM's tool call parser; without one, `tools` are refused (LORIKEET_TOOL_PARSER)",
    )
    add(
        "--enable-auto-tool-choice",
        action="store_true",
        help="accepted because `vllm serve` requires it; a tool call parser is enough",
    )
    add(
        "--reasoning-parser",
        default=_default("LORIKEET_REASONING_PARSER"),
        help="vLLM's reasoning parser (LORIKEET_REASONING_PARSER)",
    )
    add(
        "--chat-template",
        type=Path,
        help="file with a chat template to use instead of the model's own",
    )
    add("--extra", type=json.loads, default={}, help="JSON object of further vLLM engine arguments")


def _add_upstream(add: Callable[..., Any]) -> None:
    add(
        "--upstream-url",
        default=_default("LORIKEET_UPSTREAM_URL", ""),
        metavar="URL",
        help=(
            "the server's address with /v1, as OpenAI's SDKs take it; its key is read from "
            "LORIKEET_UPSTREAM_KEY, or from the file LORIKEET_UPSTREAM_KEY_FILE "
            "(LORIKEET_UPSTREAM_URL)"
        ),
    )
    add(
        "--upstream-model",
        default=_default("LORIKEET_UPSTREAM_MODEL", ""),
        metavar="NAME",
        help=(
            "the server's own name of the model; by default --model, or the only one that it has "
            "(LORIKEET_UPSTREAM_MODEL)"
        ),
    )
    add(
        "--upstream-dialect",
        type=str.lower,
        choices=list(BY_OPTION),
        default=_default("LORIKEET_UPSTREAM_DIALECT", ""),
        help="what kind of server it is; by default it is asked (LORIKEET_UPSTREAM_DIALECT)",
    )
    add(
        "--overflow",
        action="store_true",
        help=(
            "take requests only when this installation's own engines of the model are too busy, "
            "and only of tenants who allow that their prompts leave it"
        ),
    )
    add(
        "--upstream-adapters",
        default=_default("LORIKEET_UPSTREAM_ADAPTERS", ""),
        metavar="FOLDER",
        help=(
            "serve adapters by a server that loads them while it runs (vLLM, SGLang; FOLDER is "
            "where it finds the files of --cache-dir), or by one that was started with "
            "FOLDER/DIGEST.gguf (llama.cpp), or with lorikeet-DIGEST=... (ms-swift; FOLDER is "
            "`listed`) (LORIKEET_UPSTREAM_ADAPTERS)"
        ),
    )
    add(
        "--upstream-slots",
        type=int,
        default=_default("LORIKEET_UPSTREAM_SLOTS", "0"),
        metavar="N",
        help="how many adapters it may have loaded at once (LORIKEET_UPSTREAM_SLOTS)",
    )


def _add_synthetic(add: Callable[..., Any]) -> None:
    add("--tokens-per-second", type=float, default=0.0, help="speed of each stream; 0: no limit")


PROFILE_FIELDS = (
    "served_name runner dtype max_model_len max_loras max_cpu_loras max_lora_rank max_num_seqs "
    "max_num_batched_tokens kv_cache_memory_bytes tensor_parallel_size pipeline_parallel_size "
    "quantization speculative_config tool_parser reasoning_parser chat_template extra "
    "enforce_eager block_size executor"
).split()
"""Those without an option of their own are set by named profiles alone."""


def profile_of(options: argparse.Namespace) -> EngineProfile:
    """The engine profile that the options ask for.

    Raises:
        BadProfile: a value is not allowed.
    """
    if not options.model:
        raise BadProfile("no model: set --model or MODEL")
    given = {name: getattr(options, name, None) for name in PROFILE_FIELDS}
    given |= settings_of(options, given["speculative_config"])
    if (dialect := options.upstream_dialect) and dialect not in BY_OPTION:
        raise BadProfile(f"upstream_dialect is {dialect!r}: it must be of {', '.join(BY_OPTION)}")
    if options.overflow and options.engine != "upstream":
        raise BadProfile("overflow needs --engine upstream: it is for servers of others")
    if options.overflow and options.upstream_adapters:
        raise BadProfile("overflow serves no adapters: leave --upstream-adapters out")
    if options.engine == "upstream":
        if not options.upstream_url.startswith(("http://", "https://")):
            raise BadProfile(
                f"upstream_url is {options.upstream_url!r}: it must be an address such as "
                "http://127.0.0.1:8000/v1"
            )
        _check_adapters(options.upstream_adapters, options.upstream_slots)
        if slots := options.upstream_slots:
            given |= {"max_loras": slots, "max_cpu_loras": slots}
        profile = EngineProfile.on_gpu(options.model, **given)  # nothing of it is this machine's
    else:
        profile = EngineProfile.here(options.model, **given)
    _check_sleep(options.sleep_after, profile)
    return profile


def _check_sleep(after_s: float | None, profile: EngineProfile) -> None:
    if after_s is None:
        return
    if after_s < 1:
        raise BadProfile(f"sleep_after is {after_s:g}: it must be at least 1")
    if not profile.sleeps:
        raise BadProfile(
            f"sleep_after is {after_s:g}: it needs {SLEEPS}, as --profile sleep has it"
        )


def _check_adapters(folder: str, slots: int) -> None:
    """Of an upstream engine: both or neither.

    Raises:
        BadProfile: a value is not allowed.
    """
    if folder and folder != str(LISTED) and not folder.startswith("/"):
        raise BadProfile(
            f"upstream_adapters is {folder!r}: it must be a folder's whole path, or {LISTED}"
        )
    if bool(folder) != bool(slots) or slots < 0:
        least = "at least 1 with" if folder else "0 without"
        raise BadProfile(f"upstream_slots is {slots}: it must be {least} --upstream-adapters")


async def start_engine(options: argparse.Namespace, profile: EngineProfile) -> Engine:
    """The engine that the options ask for; every start says which one runs."""
    log.info("engine_starting", engine=options.engine, model=profile.model)
    if options.engine == "synthetic":
        from inference.agent.engines.synthetic.engine import SyntheticEngine

        synthetic = SyntheticEngine.of(profile, tokens_per_second=options.tokens_per_second or None)
        return _sleeping(synthetic, options, profile)
    if options.engine == "upstream":
        return await UpstreamEngine.start(
            profile,
            options.upstream_url,
            _upstream_key(),
            model=options.upstream_model,
            dialect=options.upstream_dialect,
            overflow=options.overflow,
            adapters=PurePosixPath(folder) if (folder := options.upstream_adapters) else None,
        )
    from inference.agent.engines.vllm.engine import VLLMEngine

    return _sleeping(await VLLMEngine.start(profile), options, profile)


def _sleeping(engine: Sleeper, options: argparse.Namespace, profile: EngineProfile) -> Engine:
    after_s = options.sleep_after or SLEEP_AFTER_S
    return SleepingEngine(engine, after_s) if profile.sleeps else engine


def _upstream_key() -> str | KeyFile:
    """The key of the server, or the file that holds it."""
    file = environ.text("LORIKEET_UPSTREAM_KEY_FILE", "")
    return KeyFile(Path(file)) if file else environ.text("LORIKEET_UPSTREAM_KEY", "")


async def serve(
    options: argparse.Namespace, profile: EngineProfile, journal: Journal, start: Start
) -> int:
    """Start the engine, serve it, and drain at the first signal. Returns the exit status."""
    gateways = environ.base_urls(options.gateway)
    running = profile.running
    queue = queue_options(options, running, profile.max_loras)
    engine = await start(options, profile)
    tracer = tracing.start("lorikeet-engine", options.id)
    log.info("engine_ready", engine=engine.info.engine, model=engine.info.name)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    fetch = HttpFetch(options.credential)
    try:
        async with AdapterStore(options.cache_dir, options.cache_bytes, fetch) as store:
            agent = Agent(
                engine,
                store,
                journal,
                id=options.id,
                credential=options.credential,
                max_running=running,
                max_resident=profile.loaded_adapters,
                max_unbilled=options.max_unbilled,
                failures=EngineFailures.open(options.journal_dir),
                hung_after_s=options.hung_after,
                tracer=tracer,
                kept_bytes=options.kept_answers,
                **queue,
            )
            gc_tuning.settle()
            return await _until(stop, agent, gateways, options.drain)
    finally:
        await fetch.aclose()
        await engine.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


async def _until(stop: asyncio.Event, agent: Agent, gateways: list[str], drain_s: float) -> int:
    running = asyncio.create_task(agent.run(gateways))
    stopping = asyncio.create_task(stop.wait())
    announced = asyncio.create_task(_announce(agent))
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not agent.joined.is_set():  # it will never be ready
        announced.cancel()
    announce.stopping()
    if running.done():
        running.result()
        return EXIT_ENGINE_DIED
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)
    await agent.drain(drain_s)
    announced.cancel()
    running.cancel()
    await asyncio.wait((running,))
    return 0


async def _announce(agent: Agent) -> None:
    """Announce readiness once a gateway has welcomed the agent: from then on requests may come."""
    await agent.joined.wait()
    announce.ready()
    await announce.keep_alive()


if __name__ == "__main__":
    main()
