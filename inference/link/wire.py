"""The frames of the engine link: one msgpack array per binary websocket message.

Frames are tagged arrays (field names never travel), so a field may be appended with a default but
never removed, reordered or retyped; `versions` says since when each exists. Times are seconds,
sizes bytes, counts tokens.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection
from typing import Any, get_args

import msgspec

from inference.errors import BY_CODE, InferenceError, InvalidRequest, ProtocolViolation

PROTOCOL_VERSION = 6
OLDEST_VERSION = 1

HASH_BYTES = 8
"""Of a beginning of a prompt (`Prefix`)."""

MOVES_SINCE = 4
"""The version from which on an engine can go on where another one stopped, and give up requests for
that; and a gateway knows what to do with these."""
MOVED = "moved"
"""The finish reason of a request that its engine gave up (`Done`)."""
ADOPTS_SINCE = 5
"""The version from which on an engine goes on without the gateway that asked, where the request has
a grace, and gives the answer to another gateway that comes for it."""
LEFT = "left"
"""The reason of a cancel by which a gateway leaves a request to whichever comes for it, and the
finish reason by which the engine says that it does. An older engine ends the request."""
MAX_KEPT_BYTES = 4 << 20
"""Of one answer: gateways and engines alike keep no more of it for other gateways."""
SUMS_SINCE = 6
"""The version from which on an engine hears from one gateway what all others served together
(`Others`), instead of from each gateway what each of them did (`Served`)."""
GONE = "gone"
"""The finish reason where a gateway comes for an answer that is not there (any longer)."""
BATCH = "batch"
"""The lane that waits behind the interactive one (`Submit.lane`)."""

MAX_FRAME_BYTES = 32 << 20
MAX_BODY_BYTES = MAX_FRAME_BYTES - (1 << 20)
"""Of the one request body in a submit frame: the rest of that is names and numbers. A longer frame
would break the link, and with it the streams of everybody else. Of answers see `Done.sendable`."""


class Value(msgspec.Struct, array_like=True, frozen=True):
    """A plain value inside frames."""


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """One websocket message."""


class AdapterRef(Value, frozen=True):
    """One immutable adapter version.

    `name` is vLLM's LoRA name, `tenant/adapter@digest`; `digest` is the SHA-256 of its content
    (`inference.content.digest_of`), by which its files are fetched.
    """

    name: str
    digest: str
    rank: int = 0
    """Its LoRA rank; 0 where it is not known."""
    modules: tuple[str, ...] = ()
    """Names of the modules that it adapts, without the path to them (`q_proj`), sorted; empty where
    they are not known."""
    ticket: str = ""
    """Lets the engine that got it fetch the files (`inference.gateway.fleet.dispatches`); empty
    elsewhere than on the way to an engine."""

    @property
    def own_name(self) -> str:
        """The adapter's, without tenant and version."""
        return self.name.rpartition("/")[2].partition("@")[0]


class ModelInfo(Value, frozen=True):
    """The base model of an engine and what its adapters may look like.

    `modules` maps each module that can carry an adapter, by its dotted path in the Hugging Face
    model (`model.layers.0.self_attn.q_proj`), to its (out_features, in_features).
    `kv_tokens` is the capacity of the KV cache in tokens.
    """

    name: str
    max_model_len: int
    max_loras: int
    max_lora_rank: int
    kv_tokens: int
    modules: dict[str, tuple[int, int]]
    engine: str
    """Which implementation runs: `vllm` or `synthetic`."""
    revision: str = ""
    """Digest of weights, tokenizer, chat template and options that change answers: engines of one
    revision give one answer. Empty where the engine does not say, as of protocol version 1."""
    engine_version: str = ""
    operations: list[str] = []
    """What requests may ask for (`Submit.kind`); empty where the engine does not say."""
    parsers: dict[str, str] = {}
    """vLLM's parsers in use, by what they read: `tool`, `reasoning`."""

    def pool_digest(self) -> str:
        """SHA-256 (hex) of all but its capacity: engines of one digest can stand in for each
        other."""
        alike = msgspec.structs.replace(self, max_loras=0, kv_tokens=0)
        return hashlib.sha256(_sorting_encoder.encode(alike)).hexdigest()


_sorting_encoder = msgspec.msgpack.Encoder(order="sorted")


class Fault(Value, frozen=True):
    """An error on the wire; `code` names its class in `inference.errors`."""

    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: InferenceError) -> Fault:
        return cls(error.code, error.message, error.param, error.retry_after_s)

    def error(self) -> InferenceError:
        """The error itself, ready to raise; an unknown code becomes the root of the tree."""
        kind = BY_CODE.get(self.code, InferenceError)
        return kind(self.message, param=self.param, retry_after_s=self.retry_after_s)


class Usage(Value, frozen=True):
    """The engine's final figures for one request. Times in seconds from the agent's receipt."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    queue_s: float = 0.0
    load_s: float = 0.0
    ttft_s: float | None = None
    total_s: float = 0.0


class Dispatch(Value, frozen=True):
    """Which engine was given an attempt of a request, and what it may report of it at most.

    `credential` is the row id of the engine's credential. `mac` binds all of it to the attempt and
    its account; `inference.gateway.fleet.dispatches` makes and checks it, agents only hand it back.
    """

    credential: int
    prompt_tokens: int
    output_tokens: int
    mac: bytes


class Account(Value, frozen=True):
    """Whom a request is billed to; the agent journals it and never looks inside.

    Row ids of the platform's database; `started_at` is a unix time in seconds, fixed by the gateway
    with the request's id, so that both together name one event for ever.
    """

    tenant_id: int
    key_id: int
    started_at: float
    base_model: str
    adapter_id: int | None = None
    version_id: int | None = None
    price: tuple[int, int, int] | None = None
    """In force when the request was reserved: micro-units of the currency per million tokens of
    prompt, cached prompt and output."""
    dispatch: Dispatch | None = None
    """That a gateway gave this attempt to an engine; None by gateways of protocol version 2."""


ATTEMPTS_OF_A_TURN = 1000
"""More than one gateway gives to a request: it tries each engine once, and moves twice."""


def turn_of(attempt: int) -> int:
    """How many gateways have had a request, the one of this attempt included: each that adopts it
    begins with `first_attempt`, so that of two that count up at a time nobody counts twice."""
    return 1 + (attempt - 1) // ATTEMPTS_OF_A_TURN


def first_attempt(turn: int) -> int:
    """The lowest attempt of a turn."""
    return 1 + (turn - 1) * ATTEMPTS_OF_A_TURN


class LedgerEntry(Value, frozen=True):
    """One request attempt that ended, as the engine's journal has it.

    `usage` is cumulative: the prompt once, and all output tokens of the answer so far, be they of
    lower attempts. So the highest attempt of a request is its bill.

    `id` is the request's, made by the server and never reused; `model` as the client wrote it;
    `finish_reason` as answered (`stop`, `length`, `tool_calls`), else `cancelled`, the reason of
    the cancel, or an error's code.
    """

    id: str
    account: Account
    model: str
    usage: Usage
    finish_reason: str
    attempt: int = 1
    inherited_tokens: int = 0
    """Of the output tokens, those that lower attempts generated and this one went on from."""


class Totals(Value, frozen=True):
    """Sums over ended requests."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, usage: Usage) -> Totals:
        """With one more request; this one is not changed."""
        return Totals(
            self.requests + 1,
            self.prompt_tokens + usage.prompt_tokens,
            self.cached_tokens + usage.cached_tokens,
            self.completion_tokens + usage.completion_tokens,
        )

    def minus(self, some: Totals) -> Totals:
        """Without some of the requests; this one is not changed."""
        return Totals(
            self.requests - some.requests,
            self.prompt_tokens - some.prompt_tokens,
            self.cached_tokens - some.cached_tokens,
            self.completion_tokens - some.completion_tokens,
        )


class Delta(Value, frozen=True):
    """What one stream gained since its last delta.

    The lean path fills `text`; vLLM's full path (tools, log-probabilities, n > 1) fills `chunks`
    with finished JSON bodies of stream chunks. `tokens` counts the output tokens in it; the first
    delta of a stream also carries what its prompt cost.
    """

    id: str
    text: str = ""
    tokens: int = 0
    chunks: list[bytes] = []
    prompt_tokens: int = 0
    cached_tokens: int = 0
    attempt: int = 1
    ids: dict[int, list[int]] = {}
    """The ids of these output tokens by choice, if `Submit.ids` asked for them."""

    def merged(self, later: Delta) -> Delta:
        """Both deltas as one; neither is changed."""
        return Delta(
            self.id,
            self.text + later.text,
            self.tokens + later.tokens,
            self.chunks + later.chunks if later.chunks else self.chunks,
            self.prompt_tokens + later.prompt_tokens,
            self.cached_tokens + later.cached_tokens,
            self.attempt,
            _joined(self.ids, later.ids) if later.ids else self.ids,
        )


def _joined(ids: dict[int, list[int]], later: dict[int, list[int]]) -> dict[int, list[int]]:
    return ids | {choice: ids.get(choice, []) + more for choice, more in later.items()}


class EngineStats(Value, frozen=True):
    """The engine's state at one moment; `running` and `waiting` are the engine core's counts."""

    running: int = 0
    waiting: int = 0
    queued: int = 0
    """Requests in the agent's own queue, in front of the engine."""
    kv_usage: float = 0.0
    """Share of KV blocks in use, 0 to 1."""
    resident: list[str] = []
    """LoRA names of the adapters loaded on the engine, least recently used first. In `Stats` only
    for protocol version 1: later ones are told what changed."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Tokens over the engine's life."""
    cached_tokens: int = 0
    journal: str = ""
    """Names the agent's journal; new where the journal's folder is new."""
    journaled: Totals = Totals()
    """All requests that ever ended in this journal, over restarts of the agent."""
    unbilled: Totals = Totals()
    """Those of them that no gateway has acknowledged yet."""
    unjournaled_tokens: int = 0
    """Output tokens that the engine counted in this run beyond the journal: 0 if all is well."""
    failures: int = 0
    """Times that the engine's core died or hung, over restarts of the agent."""
    last_failure: str = ""
    """How it failed last: `died`, or `hung`."""
    refused_suspects: int = 0
    """Requests refused in this run because engines had failed with them (`Suspect`)."""
    queued_tokens: int = 0
    """Of the prompts of all requests without output, in the agent's queue or the engine, about."""
    active: list[str] = []
    """LoRA names of the adapters with running requests: they have a slot."""
    awaited: list[str] = []
    """LoRA names of those whose requests wait for a slot or their load; some, if there are many."""
    spare: int = 0
    """How many more adapters could be loaded without one that has to go."""


class Suspect(Value, frozen=True):
    """A request that ran on an engine when that failed; `suspects` says what follows from it.

    `digest` names what was asked for, `tenant` and `request_id` who asked last.
    """

    digest: str
    deaths: dict[str, float] = {}
    """When engines failed with it, a unix time in seconds, by the agent's run (`Hello.run`)."""
    ended_well_at: float = 0.0
    """When it last ran to its end; what was before does not count."""
    tenant: str = ""
    request_id: str = ""


class Wait(Value, frozen=True):
    """What a request without output waits for.

    `phase` is `fetching` (its adapter's files), `queued`, `loading` (its adapter, on the engine) or
    `prefill`; `place` is 1 for who is next in the queue, 0 outside of it. Of a gateway itself it is
    `held`, for an engine, or `moving`, from one that was lost, or is to end, to another.
    """

    id: str
    phase: str
    place: int = 0
    attempt: int = 1


NOBODY = Account(0, 0, 0.0, "")


class Hello(Frame, tag="hello", frozen=True):
    """Agent to gateway, first frame: who dials and what it serves."""

    oldest_version: int
    newest_version: int
    engine_id: str
    model: ModelInfo
    stats: EngineStats = EngineStats()
    run: str = ""
    """New at each start of the agent: tells two agents that were given one id apart."""
    warm: bytes | None = None
    """Hashes (`Prefix.hashes`) of all that its prefix cache holds; None: the engine doesn't say."""


class Welcome(Frame, tag="welcome", frozen=True):
    """Gateway to agent, answers hello: the version both speak and the gateways that are alive."""

    version: int
    gateway_id: str
    gateways: list[str] = []


class Gateways(Frame, tag="gateways", frozen=True):
    """Gateway to agent: the list of live gateways changed; base URLs."""

    gateways: list[str]


class Heartbeat(Frame, tag="heartbeat", frozen=True):
    """Either way, when nothing else was sent for a while."""


class Resume(Value, frozen=True):
    """Where another engine stopped: what lower attempts generated and the reader was given.

    An engine of the same revision goes on from there as if it had generated this itself, and sends
    nothing of it again.
    """

    ids: dict[int, list[int]]
    """The ids of the output tokens by choice, each list in order."""
    finished: dict[int, str] = {}
    """The choices that had ended, with their finish reasons."""
    usage: Usage = Usage()
    """Of the lower attempts together, cumulative: the prompt once."""
    text: str = ""
    """What the reader was given, where the request has a grace: the engine keeps it with what it
    generates itself, for another gateway."""
    chunks: list[bytes] = []
    """As `text`, where whole chunks were given."""


class Prefix(Value, frozen=True):
    """Names the beginnings of a prompt, the shortest first: see
    `inference.operations.bodies.beginnings`.

    `hashes` has HASH_BYTES for each, keyed by tenant and adapter. `ends` has 4 bytes for each:
    where it ends, in characters; the last is about where the prompt does. Little-endian.
    """

    hashes: bytes
    ends: bytes

    @classmethod
    def of(cls, hashes: Collection[int], ends: Collection[int]) -> Prefix:
        """From integers; `ends` grow, and there is one at least."""
        return cls(hashes_of(hashes), struct.pack(f"<{len(ends)}I", *ends))

    @property
    def is_sound(self) -> bool:
        """Whether it is what `of` makes; else nothing may be asked of it."""
        count, rest = divmod(len(self.ends), 4)
        return count > 0 == rest and len(self.hashes) == HASH_BYTES * count and any(self.ends[-4:])

    def numbers(self) -> tuple[int, ...]:
        """The hashes as integers."""
        return numbers_of(self.hashes)

    def marks(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The hashes and the ends as integers."""
        return self.numbers(), struct.unpack_from(f"<{len(self.ends) // 4}I", self.ends)

    def tokens(self, prompt_tokens: int) -> list[int]:
        """How many of the prompt's tokens each has, as far as characters tell."""
        ends = struct.unpack_from(f"<{len(self.ends) // 4}I", self.ends)
        return [prompt_tokens * end // ends[-1] for end in ends]


def numbers_of(hashes: bytes) -> tuple[int, ...]:
    """Hashes one after another as integers; what is left over is none."""
    return struct.unpack_from(f"<{len(hashes) // HASH_BYTES}Q", hashes)


def hashes_of(numbers: Collection[int]) -> bytes:
    """The reverse of `numbers_of`."""
    return struct.pack(f"<{len(numbers)}Q", *numbers)


class Submit(Frame, tag="submit", frozen=True):
    """Gateway to agent: generate this.

    `kind` is `chat` or `completion`; `body` the client's JSON as it came, of which the agent takes
    nothing that says who the client is. `model` is the name shown in the answer, `salt` the
    tenant's prefix-cache salt.
    """

    id: str
    kind: str
    body: bytes
    model: str
    tenant: str
    salt: str
    adapter: AdapterRef | None = None
    weight: float = 1.0
    timeout_s: float = 600.0
    account: Account = NOBODY
    lane: str = "interactive"
    """`interactive`, or `batch`, which waits behind it."""
    max_tokens: int | None = None
    """What the limits allow each choice to generate, whatever the body asks for."""
    prompt_tokens: int = 0
    """The gateway's estimate."""
    watched: bool = False
    """Somebody looks at it: say in `waits` what it waits for."""
    attempt: int = 1
    """Counts the engines that this request was tried on. The same id may live under two attempts,
    never twice under one."""
    ids: bool = False
    """Say in `Delta.ids` which tokens were generated."""
    choices: int = 0
    """Texts that the body asks for; 0 where the gateway does not say, and the agent must look."""
    wanted_tokens: int | None = None
    """What the body bounds each of them by."""
    logprobs: int = 0
    """Log-probabilities that it asks for with each token of each of them."""
    resume: Resume | None = None
    """Go on from here; None begins anew."""
    prefix: Prefix | None = None
    """Its prompt's beginnings, in which names the engine says what it holds of them."""
    trace: str = ""
    """The span of this attempt, as W3C's `traceparent`; empty where it is not traced."""
    grace_s: float = 0.0
    """For so long after its gateway is lost the answer goes on, or is kept, for another one to come
    for it; 0: it ends at once."""
    label: str = ""
    """By which gateways recognise it then, where the request's id does not tell."""


class Orphan(Value, frozen=True):
    """A request that runs, or has ended, without a gateway: one may come for it (`Adopt`).

    `account` is that of the attempt, with the signature of the gateway that dispatched it; `model`
    the name shown in the answer, `label` as in `Submit`.
    """

    id: str
    attempt: int
    account: Account
    model: str
    label: str = ""


class Orphans(Frame, tag="orphans", frozen=True):
    """Agent to gateway: requests that have no gateway now, and attempts that were such and are
    adopted, or gone."""

    orphans: list[Orphan] = []
    gone: list[tuple[str, int]] = []


class Adopt(Frame, tag="adopt", frozen=True):
    """Gateway to agent: give me this answer, all that there is of it and then what comes.

    The engine's attempt `of` ends in its journal, and `attempt` begins, which goes on from all that
    there is. It is of a higher turn (`turn_of`), so it is the one that bills. If the answer is not
    there, its `done` says `gone`.
    """

    id: str
    attempt: int
    of: int
    account: Account
    """Of the new attempt, signed."""
    watched: bool = False
    """As in `Submit`."""


class Step(Frame, tag="step", frozen=True):
    """Agent to gateway: all deltas of this gateway's streams since the last step."""

    deltas: list[Delta]


class Waits(Frame, tag="waits", frozen=True):
    """Agent to gateway: what its watched requests wait for, of those for which that changed.

    Only a gateway that sets `Submit.watched` hears it, so older ones need not know it.
    """

    waits: list[Wait]


class Done(Frame, tag="done", frozen=True):
    """Agent to gateway: the request ended; nothing more comes for `id`.

    `response` is the whole JSON body of a non-streaming request that took the full path. The finish
    reason `moved` says that the engine gave the request up, for another one to go on with: only
    gateways hear it that asked for `Submit.ids`, and speak version 4.
    """

    id: str
    usage: Usage
    finish_reason: str | None = None
    response: bytes | None = None
    fault: Fault | None = None
    attempt: int = 1

    def sendable(self) -> Done:
        """Itself, or that its answer is too long: a longer frame would break the link, and with it
        the streams of everybody else."""
        length, most = len(self.response or b""), MAX_FRAME_BYTES // 2
        if length <= most:
            return self
        error = InvalidRequest(
            f"The answer has {length} bytes, and one that does not stream can have {most}: set "
            "`stream`, or ask for less.",
            param="stream",
        )
        return msgspec.structs.replace(self, response=None, fault=Fault.of(error))


class Cancel(Frame, tag="cancel", frozen=True):
    """Gateway to agent: abort this request; a done frame still follows."""

    id: str
    reason: str
    attempt: int = 1


class Stats(Frame, tag="stats", frozen=True):
    """Agent to gateway: once a second, on change of residency, and since SUMS_SINCE `between`.

    `served` holds, for each tenant whose figure changed since the last frame on this link, the
    service that it received from this engine since the agent's start (`run`): tokens over weight,
    ever growing. Gateways of SUMS_SINCE hear `gained` instead.
    """

    stats: EngineStats
    run: str = ""
    served: dict[str, float] = {}
    loaded: list[str] = []
    """LoRA names that were loaded or used again since the last frame on this link, in the order of
    `EngineStats.resident`, at whose end they belong."""
    evicted: list[str] = []
    """LoRA names that are no longer loaded."""
    warm: bytes = b""
    """Hashes (`Prefix.hashes`) of what the prefix cache holds since the last frame on this link."""
    cold: bytes = b""
    """Of what it no longer holds."""
    anew: bool = False
    """Nothing that was said to be warm before still counts."""
    gained: dict[str, float] = {}
    """By how much each tenant's figure grew since the last frame, instead of `served`."""
    between: bool = False
    """Said between two reports, because the engine's load changed."""
    asks: bool | None = None
    """Whether it is this gateway that is to tell the engine what the others served (`Others`), or
    only how many they are; None: neither."""


class Others(Frame, tag="others", frozen=True):
    """Gateway to agent, answers `Stats.asks`: how many engines of its base model are connected to
    this gateway, itself included, and how much the others served since the last answer, by tenant
    in tokens over weight: whom they served most, if there are many; the rest is told later."""

    engines: int
    served: dict[str, float] = {}


class Served(Frame, tag="served", frozen=True):
    """Gateway to agent: what another engine of the same base model said of its `served`. Who
    asks for `Others` hears it only of engines that don't.

    Figures only grow within a `run`, so hearing them from two gateways changes nothing.
    """

    engine_id: str
    run: str
    served: dict[str, float]


class Suspects(Frame, tag="suspects", frozen=True):
    """Either way: with which requests engines failed, as this agent learnt, or others did. Hearing
    it twice changes nothing."""

    suspects: list[Suspect]


class UsageReport(Frame, tag="usage", frozen=True):
    """Agent to gateway: ended requests for the ledger, sent until one gateway acknowledges them."""

    journal: str
    entries: list[LedgerEntry]


class UsageAck(Frame, tag="usage_ack", frozen=True):
    """Gateway to agent: these entries are in the ledger for good; forget them.

    `attempts` names them by request id and attempt; protocol version 1 by `ids` alone.
    """

    ids: list[str]
    attempts: list[tuple[str, int]] = []


class Pins(Frame, tag="pins", frozen=True):
    """Gateway to agent: the adapters to keep loaded, as the operator wishes; replaces the last."""

    adapters: list[AdapterRef]


class Load(Frame, tag="load", frozen=True):
    """Gateway to agent: load an adapter; with `probe`, also try whether it changes the output."""

    id: str
    adapter: AdapterRef
    probe: bool = False


class Loaded(Frame, tag="loaded", frozen=True):
    """Agent to gateway, answers load. `report` is `agent.engine.ProbeReport` as a dict."""

    id: str
    report: dict[str, Any]
    fault: Fault | None = None


class Unload(Frame, tag="unload", frozen=True):
    """Gateway to agent: forget this adapter as soon as no request uses it."""

    digest: str


class Drain(Frame, tag="drain", frozen=True):
    """Either way: take (send) no new work on this link; what runs is finished."""


class Error(Frame, tag="error", frozen=True):
    """Either way, last frame: why this link is being closed."""

    fault: Fault


class Unknown(Frame, frozen=True):
    """A frame of a newer version, of which only the tag could be read. Never sent."""

    name: str


AnyFrame = (
    Hello
    | Welcome
    | Gateways
    | Heartbeat
    | Submit
    | Step
    | Waits
    | Done
    | Cancel
    | Stats
    | Served
    | Others
    | Suspects
    | UsageReport
    | UsageAck
    | Pins
    | Load
    | Loaded
    | Unload
    | Drain
    | Error
    | Orphans
    | Adopt
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)
_parts_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_tag_decoder = msgspec.msgpack.Decoder(str)
_TAGS = {kind.__struct_config__.tag for kind in get_args(AnyFrame)}

encode = _encoder.encode


def decode(message: bytes) -> AnyFrame | Unknown:
    """Decode one message; `Unknown` if it is a frame by its form, with a tag that is not ours.

    Raises:
        ProtocolViolation: it is not a frame of this protocol, or larger than MAX_FRAME_BYTES.
    """
    if len(message) > MAX_FRAME_BYTES:
        raise ProtocolViolation(f"frame of {len(message)} bytes is over {MAX_FRAME_BYTES}")
    try:
        return _decoder.decode(message)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        if (unknown := _unknown(message)) is not None:
            return unknown
        raise ProtocolViolation(f"not a frame: {error}") from error


def _unknown(message: bytes) -> Unknown | None:
    try:
        tag = _tag_decoder.decode(next(iter(_parts_decoder.decode(message)), b""))
    except msgspec.MsgspecError:
        return None
    return None if tag in _TAGS else Unknown(tag)
