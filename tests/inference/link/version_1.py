"""Protocol version 1 of the engine link as it was, except that arrays with additional fields are
refused.

`version_1.json` holds messages that the code of version 1 wrote, in hexadecimal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec


class Value(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    pass


class Frame(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    pass


class AdapterRef(Value, frozen=True):
    name: str
    digest: str


class ModelInfo(Value, frozen=True):
    name: str
    max_model_len: int
    max_loras: int
    max_lora_rank: int
    kv_tokens: int
    modules: dict[str, tuple[int, int]]
    engine: str


class Fault(Value, frozen=True):
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class Usage(Value, frozen=True):
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    queue_s: float = 0.0
    load_s: float = 0.0
    ttft_s: float | None = None
    total_s: float = 0.0


class Account(Value, frozen=True):
    tenant_id: int
    key_id: int
    started_at: float
    base_model: str
    adapter_id: int | None = None
    version_id: int | None = None


class LedgerEntry(Value, frozen=True):
    id: str
    account: Account
    model: str
    usage: Usage
    finish_reason: str


class Totals(Value, frozen=True):
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class Delta(Value, frozen=True):
    id: str
    text: str = ""
    tokens: int = 0
    chunks: list[bytes] = []
    prompt_tokens: int = 0
    cached_tokens: int = 0


class EngineStats(Value, frozen=True):
    running: int = 0
    waiting: int = 0
    queued: int = 0
    kv_usage: float = 0.0
    resident: list[str] = []
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    journal: str = ""
    journaled: Totals = Totals()
    unbilled: Totals = Totals()
    unjournaled_tokens: int = 0


class Wait(Value, frozen=True):
    id: str
    phase: str
    place: int = 0


NOBODY = Account(0, 0, 0.0, "")


class Hello(Frame, tag="hello", frozen=True):
    oldest_version: int
    newest_version: int
    engine_id: str
    model: ModelInfo
    stats: EngineStats = EngineStats()


class Welcome(Frame, tag="welcome", frozen=True):
    version: int
    gateway_id: str
    gateways: list[str] = []


class Gateways(Frame, tag="gateways", frozen=True):
    gateways: list[str]


class Heartbeat(Frame, tag="heartbeat", frozen=True):
    pass


class Submit(Frame, tag="submit", frozen=True):
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
    max_tokens: int | None = None
    prompt_tokens: int = 0
    watched: bool = False


class Step(Frame, tag="step", frozen=True):
    deltas: list[Delta]


class Waits(Frame, tag="waits", frozen=True):
    waits: list[Wait]


class Done(Frame, tag="done", frozen=True):
    id: str
    usage: Usage
    finish_reason: str | None = None
    response: bytes | None = None
    fault: Fault | None = None


class Cancel(Frame, tag="cancel", frozen=True):
    id: str
    reason: str


class Stats(Frame, tag="stats", frozen=True):
    stats: EngineStats
    run: str = ""
    served: dict[str, float] = {}


class Served(Frame, tag="served", frozen=True):
    engine_id: str
    run: str
    served: dict[str, float]


class UsageReport(Frame, tag="usage", frozen=True):
    journal: str
    entries: list[LedgerEntry]


class UsageAck(Frame, tag="usage_ack", frozen=True):
    ids: list[str]


class Pins(Frame, tag="pins", frozen=True):
    adapters: list[AdapterRef]


class Load(Frame, tag="load", frozen=True):
    id: str
    adapter: AdapterRef
    probe: bool = False


class Loaded(Frame, tag="loaded", frozen=True):
    id: str
    report: dict[str, Any]
    fault: Fault | None = None


class Unload(Frame, tag="unload", frozen=True):
    digest: str


class Drain(Frame, tag="drain", frozen=True):
    pass


class Error(Frame, tag="error", frozen=True):
    fault: Fault


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
    | UsageReport
    | UsageAck
    | Pins
    | Load
    | Loaded
    | Unload
    | Drain
    | Error
)

decode = msgspec.msgpack.Decoder(AnyFrame).decode
encode = msgspec.msgpack.Encoder().encode

_RECORDED = json.loads(Path(__file__).with_suffix(".json").read_text())


def recorded(side: str, name: str) -> bytes:
    """A message recorded from the `agent` or the `gateway`."""
    return bytes.fromhex(_RECORDED[side][name])
