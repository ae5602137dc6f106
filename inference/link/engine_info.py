"""What an engine tells gateways of itself: its model, its adapters, its state.

Msgpack arrays, as in `wire`: fields may only be appended.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

from inference.link.accounts import Totals
from inference.link.values import Amount, Count, Difference, Size, Value

PREFILL, DECODE = "prefill", "decode"
"""The roles of engines that share the work of a request (`ModelInfo.role`)."""


class AdapterRef(Value, frozen=True):
    """One immutable adapter version.

    `name` is vLLM's LoRA name, `tenant/adapter@digest`; `digest` is the SHA-256 of its content
    (`inference.content.digest_of`), by which its files are fetched.
    """

    name: str
    digest: str
    rank: int = 0
    """Its LoRA rank; 0 if unknown."""
    modules: tuple[str, ...] = ()
    """Names of the modules that it adapts, without their path (`q_proj`), sorted; empty if
    unknown."""
    ticket: str = ""
    """Allows the engine that receives it to fetch the files (`inference.gateway.fleet.dispatches`);
    set only in frames to an engine."""

    @property
    def own_name(self) -> str:
        """The adapter's name without tenant and version."""
        return self.name.rpartition("/")[2].partition("@")[0]


class ModelInfo(Value, frozen=True):
    """The base model of an engine and what its adapters may look like.

    `modules` maps each module that can carry an adapter, by its dotted path in the Hugging Face
    model (`model.layers.0.self_attn.q_proj`), to its (out_features, in_features).
    `kv_tokens` is the capacity of the KV cache in tokens.
    """

    name: str
    max_model_len: Size
    max_loras: Size
    max_lora_rank: Size
    kv_tokens: Count
    modules: dict[str, tuple[Size, Size]]
    engine: str
    """The implementation: `vllm`, `upstream` or `synthetic`."""
    revision: str = ""
    """Digest of weights, tokenizer, chat template and options that change answers: engines of one
    revision give the same answer."""
    engine_version: str = ""
    operations: list[str] = []
    """The operations that it serves (`Submit.kind`)."""
    parsers: dict[str, str] = {}
    """Names of the vLLM parsers in use, by what they parse: `tool`, `reasoning`."""
    structured_outputs: bool = False
    """Whether it can constrain an answer to a JSON schema, a regular expression or a grammar."""
    resumes: bool = True
    """Whether it can continue an answer that another engine began."""
    degraded: list[str] = []
    """What it can't do with its memory or its release of vLLM: sentences for operators."""
    profile: Annotated[str, msgspec.Meta(max_length=255)] = ""
    """The named profile that it was started with."""
    proof: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    """Whether that was proven on its hardware, and what it showed: a sentence for operators."""
    overflow: bool = False
    """Whether it sends prompts to a server outside of the installation, and takes only what the
    installation's own engines are too busy for (`inference.gateway.routing.overflow`)."""
    role: str = ""
    """PREFILL: it only computes prompts, for engines with the role DECODE, which can also take
    whole requests, as all others do (`inference.gateway.routing.prefill`)."""
    only_adapters: list[str] = []
    """Digests of the adapters that it can serve; empty: any that fits."""

    @property
    def serves(self) -> bool:
        """Whether any request of its pool may go to it, and nothing but its load is against it."""
        return not self.overflow and self.role != PREFILL

    def pool_digest(self) -> str:
        """SHA-256 (hex) of everything up to `parsers` except its capacity: engines with the same
        digest can replace each other. Later fields follow from `engine` and its version, and with
        them a new release would make a new revision of every pool. An overflow engine has another
        digest than any other engine."""
        alike = msgspec.structs.replace(self, max_loras=0, kv_tokens=0)
        fields = msgspec.structs.astuple(alike)[:_DIGESTED_FIELDS]
        if self.overflow:
            fields += ("overflow",)
        return hashlib.sha256(_sorting_encoder.encode(fields)).hexdigest()


_DIGESTED_FIELDS = ModelInfo.__struct_fields__.index("parsers") + 1
_sorting_encoder = msgspec.msgpack.Encoder(order="sorted")


class EngineStats(Value, frozen=True):
    """The engine's state at one moment; `running` and `waiting` are the engine core's counts."""

    running: Count = 0
    waiting: Count = 0
    queued: Count = 0
    """Requests in the agent's own queue, in front of the engine."""
    kv_usage: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Share of KV blocks in use, 0 to 1."""
    resident: list[str] = []
    """LoRA names of the adapters loaded on the engine, least recently used first. Only in
    `Hello`: `Stats` has the changes."""
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    """Tokens since the engine's start."""
    cached_tokens: Count = 0
    journal: str = ""
    """Identifies the agent's journal; changes if the journal's folder is new."""
    journaled: Totals = Totals()
    """All requests that ever ended in this journal, across restarts of the agent."""
    unbilled: Totals = Totals()
    """Those of `journaled` that no gateway has acknowledged yet."""
    unjournaled_tokens: Difference = 0
    """Output tokens that the engine counted in this run beyond the journal's: normally 0."""
    failures: Count = 0
    """How often the engine's core died or hung, across restarts of the agent."""
    last_failure: str = ""
    """The kind of the last failure: `died` or `hung`."""
    refused_suspects: Count = 0
    """Requests refused in this run because engines had failed with them (`Suspect`)."""
    queued_tokens: Count = 0
    """Approximate prompt tokens of all requests without output, in the agent's queue or the
    engine."""
    active: list[str] = []
    """LoRA names of the adapters with running requests, which occupy a slot."""
    awaited: list[str] = []
    """LoRA names of adapters whose requests wait for a slot or the load; incomplete if many."""
    spare: Difference = 0
    """How many more adapters could be loaded without evicting one."""
    drafted_tokens: Count = 0
    accepted_tokens: Count = 0
    """Tokens that speculation guessed since the engine's start, and those that were right."""
    wait_s: Amount = 0.0
    """How long a request of a tenant that has no other here would wait in the agent's queue."""
    asleep: bool = False
    """Whether it has given its device's memory back, and wakes up for the next request."""


class Suspect(Value, frozen=True):
    """A request that was running on an engine when that failed; see `suspects`.

    `digest` identifies its tenant and content; `tenant` and `request_id` are those of the last
    request with it.
    """

    digest: str
    deaths: dict[str, Amount] = {}
    """When engines failed with it, as unix times in seconds, by the agent's run (`Hello.run`)."""
    ended_well_at: Amount = 0.0
    """When it last ran to its end, a unix time in seconds; earlier failures do not count."""
    tenant: str = ""
    request_id: str = ""
