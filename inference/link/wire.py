"""The frames of the engine link: one msgpack array per binary websocket message.

Frames are tagged arrays (field names are not sent), so a field may be appended with a default but
never removed, reordered or retyped; `versions` lists the version that added each. Times are
seconds, sizes bytes, counts tokens. Values inside frames that are also used elsewhere are in
`accounts`, `engine_info` and `prefixes`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, get_args

import msgspec

from inference.errors import BY_CODE, InferenceError, InvalidRequest, ProtocolViolation
from inference.link.accounts import NOBODY, Account, LedgerEntry, Usage
from inference.link.engine_info import AdapterRef, EngineStats, ModelInfo, Suspect
from inference.link.prefixes import Prefix
from inference.link.values import Amount, Count, Value
from inference.link.workload import ONE_CHOICE, Workload

PROTOCOL_VERSION = 1
OLDEST_VERSION = 1

PREFILLED = "prefilled"
"""The finish reason of an attempt that only computed the prompt (`Submit.prefill`)."""
MAX_HANDOVER_BYTES = 256 << 10
"""Longest `Handover.params`: the numbers of the KV blocks of a prompt with a million tokens."""
MOVED = "moved"
"""The finish reason of a request that its engine gave up (`Done`)."""
LEFT = "left"
"""The reason of a cancel by which a gateway leaves a request to any gateway that adopts it, and the
finish reason with which the engine confirms that."""
MAX_KEPT_BYTES = 4 << 20
"""Most bytes of one answer that gateways and engines keep for other gateways."""
GONE = "gone"
"""The finish reason if a gateway adopts an answer that is not there, or not any longer."""
RECALLED = "recalled"
"""The reason of a cancel by which a gateway takes a request back for another engine: the agent
gives it up (MOVED) if it still waits in its queue, or was only to compute its prompt, and otherwise
goes on as if nothing was said."""
INTERACTIVE, BATCH = "interactive", "batch"
"""The lanes (`Submit.lane`): `batch` waits behind the interactive one."""

MAX_FRAME_BYTES = 32 << 20
MAX_BODY_BYTES = MAX_FRAME_BYTES - (1 << 20)
"""Longest request body in a submit frame, whose other fields are names and numbers. A longer frame
would break the link, and with it all other streams. For answers see `Done.sendable`."""


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """One websocket message."""


class Fault(Value, frozen=True):
    """An error on the wire; `code` names its class in `inference.errors`."""

    code: str
    message: str
    param: str | None = None
    retry_after_s: Amount | None = None

    @classmethod
    def of(cls, error: InferenceError) -> Fault:
        return cls(error.code, error.message, error.param, error.retry_after_s)

    def error(self) -> InferenceError:
        """The error itself, ready to raise; an unknown code becomes the root of the tree."""
        kind = BY_CODE.get(self.code, InferenceError)
        return kind(self.message, param=self.param, retry_after_s=self.retry_after_s)


class Delta(Value, frozen=True):
    """The output of one stream since its last delta.

    The lean path fills `text`; vLLM's full path (tools, log-probabilities, n > 1) fills `chunks`
    with finished JSON bodies of stream chunks. `tokens` counts its output tokens; the first delta
    of a stream also has the token counts of the prompt.
    """

    id: str
    text: str = ""
    tokens: Count = 0
    chunks: list[bytes] = []
    prompt_tokens: Count = 0
    cached_tokens: Count = 0
    attempt: int = 1
    ids: dict[int, list[int]] = {}
    """The ids of the output tokens by choice, if `Submit.ids` asked for them."""

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


class Wait(Value, frozen=True):
    """What a request without output waits for.

    `phase` is `fetching` (its adapter's files), `queued`, `loading` (its adapter, on the engine) or
    `prefill`; `place` is 1 for the next request in the queue, 0 outside of it. At a gateway the
    phase is `held` (no engine yet) or `moving` (to another engine, from one that was lost or is
    shutting down).
    """

    id: str
    phase: str
    place: Count = 0
    attempt: int = 1


class Hello(Frame, tag="hello", frozen=True):
    """Agent to gateway, first frame: the engine and what it serves."""

    oldest_version: int
    newest_version: int
    engine_id: str
    model: ModelInfo
    stats: EngineStats = EngineStats()
    run: str = ""
    """New at each start of the agent: distinguishes two agents that were given the same id."""
    warm: bytes | None = None
    """Hashes (`Prefix.hashes`) of all that its prefix cache holds; None if not reported."""


class Welcome(Frame, tag="welcome", frozen=True):
    """Gateway to agent, answers `hello`: the version both speak and the live gateways."""

    version: int
    gateway_id: str
    gateways: list[str] = []


class Gateways(Frame, tag="gateways", frozen=True):
    """Gateway to agent: the list of live gateways changed; base URLs."""

    gateways: list[str]


class Heartbeat(Frame, tag="heartbeat", frozen=True):
    """Either way, if nothing else was sent for HEARTBEAT_S (`session`)."""


class Resume(Value, frozen=True):
    """Where another engine stopped: the output of lower attempts that was given to the client.

    An engine of the same revision continues as if it had generated this itself, and sends nothing
    of it again.
    """

    ids: dict[int, list[int]]
    """The ids of the output tokens by choice, each list in order."""
    finished: dict[int, str] = {}
    """The choices that had ended, with their finish reasons."""
    usage: Usage = Usage()
    """Cumulative usage of the lower attempts: the prompt once."""
    text: str = ""
    """The text that the client was given, if the request has a grace: the engine keeps it with its
    own output, for another gateway."""
    chunks: list[bytes] = []
    """As `text`, if the client was given whole chunks."""


class Retention(Value, frozen=True):
    """For how long the answer of a lost gateway continues, or is kept, for another one to adopt."""

    grace_s: float = 0.0
    """From the loss of the gateway; 0: it ends at once."""
    label: str = ""
    """Identifies the request to gateways that may adopt it, if its id does not."""


NOT_KEPT = Retention()


class Handover(Value, frozen=True):
    """Keys and values of a prompt that a prefill engine computed and keeps for another engine.

    `params` say where they are; gateways pass them on unread. `valid_s`: the prefill engine keeps
    them for so long, from when this frame is sent. `usage` is that of the attempt that computed
    them, set by the gateway: the prompt is counted there.
    """

    params: Annotated[bytes, msgspec.Meta(max_length=MAX_HANDOVER_BYTES)]
    valid_s: Amount
    usage: Usage = Usage()


class Submit(Frame, tag="submit", frozen=True):
    """Gateway to agent: run this request.

    `kind` is the operation's name; `body` the client's JSON, of which the agent uses no field that
    identifies the client. `model` is the name shown in the answer, `salt` the tenant's prefix-cache
    salt.
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
    workload: Workload = ONE_CHOICE
    max_tokens: int | None = None
    """Most tokens per choice that the limits allow, if the body sets no bound: the agent adds it to
    the body."""
    watched: bool = False
    """Report in `waits` what it waits for, because the client displays that."""
    attempt: int = 1
    """Counts the engines that this request was tried on. Two attempts of one id may live at the
    same time, with different numbers."""
    ids: bool = False
    """Report in `Delta.ids` which tokens were generated."""
    resume: Resume | None = None
    """Continue from here; None starts from the beginning."""
    prefix: Prefix | None = None
    """Its prompt's beginnings; the engine reports those that its cache holds by these hashes."""
    trace: str = ""
    """The span of this attempt, as W3C `traceparent`; empty if it is not traced."""
    retention: Retention = NOT_KEPT
    prefill: bool = False
    """Only compute the prompt and keep it for another engine: nothing is generated, and the `done`
    says PREFILLED."""
    handover: Handover | None = None
    """The prompt as a prefill engine computed it; the engine computes itself what it can't get."""


class Orphan(Value, frozen=True):
    """A request that runs, or has ended, without a gateway: one may adopt it (`Adopt`).

    `account` is the attempt's, signed by the gateway that dispatched it; `model` the name shown in
    the answer, `label` as in `Retention`.
    """

    id: str
    attempt: int
    account: Account
    model: str
    label: str = ""


class OrphanList(Frame, tag="orphans", frozen=True):
    """Agent to gateway: requests that have no gateway now, and attempts (`withdrawn`) that had none
    but were adopted or dropped."""

    orphans: list[Orphan] = []
    withdrawn: list[tuple[str, int]] = []


class Adopt(Frame, tag="adopt", frozen=True):
    """Gateway to agent: send this orphan's answer, all that exists so far and then the rest.

    The engine's attempt `of` ends in its journal, and `attempt` begins, which continues from there.
    It is of a higher turn (`turn_of`), so the request is billed by it. If the answer does not exist
    any longer, its `done` says `gone`.
    """

    id: str
    attempt: int
    of: int
    account: Account
    """The new attempt's, signed."""
    watched: bool = False
    """As in `Submit`."""


class Step(Frame, tag="step", frozen=True):
    """Agent to gateway: all deltas of this gateway's streams since the last step."""

    deltas: list[Delta]


class Waits(Frame, tag="waits", frozen=True):
    """Agent to gateway: the watched requests for which the reason to wait changed."""

    waits: list[Wait]


class Done(Frame, tag="done", frozen=True):
    """Agent to gateway: the request ended; nothing more is sent for `id`.

    `response` is the whole JSON body of a non-streaming request that took the full path. The finish
    reason `moved` says that the engine gave the request up so that another one continues it; it is
    only sent to gateways that set `Submit.ids`.
    """

    id: str
    usage: Usage
    finish_reason: str | None = None
    response: bytes | None = None
    fault: Fault | None = None
    attempt: int = 1
    handover: Handover | None = None
    """With the finish reason PREFILLED: where the prompt is; None if it can't be fetched."""

    def sendable(self) -> Done:
        """Itself, or an error if its answer is too long: a longer frame would break the link, and
        with it all other streams."""
        length, most = len(self.response or b""), MAX_FRAME_BYTES // 2
        if length <= most:
            return self
        error = InvalidRequest(
            f"The answer has {length} bytes; without `stream` it can have at most {most}. "
            "Set `stream`, or request less output.",
            param="stream",
        )
        return msgspec.structs.replace(self, response=None, fault=Fault.of(error))


class Cancel(Frame, tag="cancel", frozen=True):
    """Gateway to agent: abort this request; a done frame still follows."""

    id: str
    reason: str
    attempt: int = 1


class Stats(Frame, tag="stats", frozen=True):
    """Agent to gateway: once a second, when loaded adapters change, and `between`."""

    stats: EngineStats
    loaded: list[str] = []
    """LoRA names that were loaded or used since the last frame on this link, in the order of
    `EngineStats.resident`; they move to its end."""
    evicted: list[str] = []
    """LoRA names that are no longer loaded."""
    warm: bytes = b""
    """Hashes (`Prefix.hashes`) that entered the prefix cache since the last frame on this link."""
    cold: bytes = b""
    """Hashes that left it."""
    anew: bool = False
    """Everything reported as warm before is void."""
    gained: dict[str, Amount] = {}
    """The service that this engine gave each tenant since the last frame, in tokens divided by
    weight; only tenants that were given any."""
    between: bool = False
    """Sent between two regular reports, because the engine's load changed."""
    asks: bool | None = None
    """Asks this gateway for `Others`: with what the other engines served (True), or only with
    their number (False); None: no answer wanted."""


class Others(Frame, tag="others", frozen=True):
    """Gateway to agent, answers `Stats.asks`: how many engines of its base model are connected to
    this gateway, itself included, and how much the others served since the last answer, by tenant,
    in tokens divided by weight. If there are many tenants, only those served most; the rest follows
    later."""

    engines: int
    served: dict[str, float] = {}


class SuspectList(Frame, tag="suspects", frozen=True):
    """Either way: suspects that are new or changed, at this agent or at others. Receiving them
    twice changes nothing."""

    suspects: list[Suspect]


class UsageReport(Frame, tag="usage", frozen=True):
    """Agent to gateway: ended requests for the ledger, sent until one gateway acknowledges them."""

    journal: str
    entries: list[LedgerEntry]


class UsageAck(Frame, tag="usage_ack", frozen=True):
    """Gateway to agent: these entries, named by request id and attempt, are durable in the ledger;
    forget them."""

    attempts: list[tuple[str, int]]


class PinnedAdapters(Frame, tag="pins", frozen=True):
    """Gateway to agent: the adapters that the operator wants kept loaded; replaces the list."""

    adapters: list[AdapterRef]


class Load(Frame, tag="load", frozen=True):
    """Gateway to agent: load an adapter; with `probe`, also test whether it changes the output, and
    compute the log-probabilities of these rows of tokens."""

    id: str
    adapter: AdapterRef
    probe: bool = False
    rows: list[list[int]] = []


class Loaded(Frame, tag="loaded", frozen=True):
    """Agent to gateway, answers `load`. `report` is `agent.engines.engine.EngineProbeReport` as a
    dict."""

    id: str
    report: dict[str, Any]
    fault: Fault | None = None


class Unload(Frame, tag="unload", frozen=True):
    """Gateway to agent: unload this adapter as soon as no request uses it."""

    digest: str


class Drain(Frame, tag="drain", frozen=True):
    """Either way: no new work on this link; running requests are finished."""


class Error(Frame, tag="error", frozen=True):
    """Either way, last frame: why this link is being closed."""

    fault: Fault


class UnknownFrame(Frame, frozen=True):
    """A frame of a newer version, of which only the tag could be decoded. Never sent."""

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
    | Others
    | SuspectList
    | UsageReport
    | UsageAck
    | PinnedAdapters
    | Load
    | Loaded
    | Unload
    | Drain
    | Error
    | OrphanList
    | Adopt
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyFrame] = msgspec.msgpack.Decoder(AnyFrame)
_parts_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_tag_decoder = msgspec.msgpack.Decoder(str)
_TAGS = {kind.__struct_config__.tag for kind in get_args(AnyFrame)}

encode = _encoder.encode


def decode(message: bytes) -> AnyFrame | UnknownFrame:
    """Decode one message; `UnknownFrame` if it has the form of a frame, but an unknown tag.

    Raises:
        ProtocolViolation: it is not a frame of this protocol, or larger than MAX_FRAME_BYTES.
    """
    if len(message) > MAX_FRAME_BYTES:
        raise ProtocolViolation(f"frame of {len(message)} bytes is over {MAX_FRAME_BYTES}")
    try:
        return _decoder.decode(message)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        if (tag := unknown_tag(message, _TAGS)) is not None:
            return UnknownFrame(tag)
        raise ProtocolViolation(f"not a frame: {error}") from error


def unknown_tag(message: bytes, known: Container[str]) -> str | None:
    """The tag of a message that could not be decoded, if that is because its tag is not known;
    otherwise None."""
    try:
        tag = _tag_decoder.decode(next(iter(_parts_decoder.decode(message)), b""))
    except msgspec.MsgspecError:
        return None
    return None if tag in known else tag
