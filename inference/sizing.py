"""How many engines some traffic needs, and what a million tokens then cost. Pure arithmetic.

The model of an engine: a decoding step reads all weights, the keys and values of its sequences and
adapters among them once, so it takes as long as the memory's bandwidth says (Williams et al.,
"Roofline", 2009); a prompt's token takes two operations for each parameter. Both are divided by an
efficiency, because no engine reaches its hardware's figures. An engine that was measured has an
`EngineSpeed` instead. Adapters fill the slots as Che's approximation of an LRU cache has it (H. Che
et al., 2002), for a popularity by Zipf.

Bytes, seconds, tokens and parameters are plain numbers; prices are in one currency.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
PROCESS_SHARE = 0.1
"""The part of a device's memory that an engine leaves free or needs besides."""
GB = 1e9
MILLION = 1e6
MAX_SIZE = 10_000_000
"""Of layers, widths and vocabularies."""
HOUR_S = 3600.0
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=HOUR_S)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class CannotSize(ValueError):
    """The plan can't be made; the message says why."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A dense decoder with gated feed-forward layers, such as Llama, Mistral, Qwen and SmolLM."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    """Of one head: its width."""
    feed_forward: int
    vocabulary: int
    tied: bool
    """Whether the output layer is the embedding."""
    qkv_bias: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ModelSize:
        """From a model's `config.json`.

        Raises:
            CannotSize: a field is missing or no size, or the model has several experts.
        """
        if any(
            config.get(name) for name in ("num_local_experts", "num_experts", "n_routed_experts")
        ):
            raise CannotSize("models with experts are not estimated: their steps read some weights")
        heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
        return cls(
            layers=_size(config, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=_size(config, "num_key_value_heads", heads),
            head=_size(config, "head_dim", hidden // heads),
            feed_forward=_size(config, "intermediate_size"),
            vocabulary=_size(config, "vocab_size"),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=config.get("model_type") == "qwen2" or bool(config.get("attention_bias")),
        )

    @property
    def _projections(self) -> list[tuple[int, int]]:
        """Widths of each linear layer of one block: in and out."""
        q, kv = self.heads * self.head, self.kv_heads * self.head
        attention = [(self.hidden, q), (self.hidden, kv), (self.hidden, kv), (q, self.hidden)]
        up, down = (self.hidden, self.feed_forward), (self.feed_forward, self.hidden)
        return [*attention, up, up, down]

    @property
    def parameters(self) -> int:
        block = sum(wide * high for wide, high in self._projections) + 2 * self.hidden
        if self.qkv_bias:
            block += (self.heads + 2 * self.kv_heads) * self.head
        ends = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * block + ends + self.hidden

    def kv_token(self, dtype: str) -> float:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head * BYTES[dtype]

    def adapter(self, rank: int, dtype: str) -> float:
        """A LoRA adapter of all linear layers."""
        widths = sum(wide + high for wide, high in self._projections)
        return self.layers * widths * rank * BYTES[dtype]


def _size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    found = config.get(name)
    if found is None:
        found = default
    if found is None:
        raise CannotSize(f"the model's config.json has no {name}")
    if type(found) is not int or not 1 <= found <= MAX_SIZE:
        raise CannotSize(f"{name} in the model's config.json must be from 1 to {MAX_SIZE:,}")
    return found


MODELS = {
    "Llama 3.1 8B": ModelSize(32, 4096, 32, 8, 128, 14336, 128256, False),
    "Qwen2.5 7B": ModelSize(28, 3584, 28, 4, 128, 18944, 152064, False, qkv_bias=True),
    "Mistral 7B v0.3": ModelSize(32, 4096, 32, 8, 128, 14336, 32768, False),
    "SmolLM2 135M": ModelSize(30, 576, 9, 3, 64, 1536, 49152, True),
}
"""From the `config.json` of each."""


@dataclass(frozen=True, slots=True)
class Device:
    """What an engine runs on; `price` is for an hour. The efficiencies are the shares of bandwidth
    and of operations that engines reach; `step_s` is what each step takes besides."""

    memory: float
    bandwidth: float
    flops: float
    price: float = 0.0
    bandwidth_share: float = 0.7
    flops_share: float = 0.5
    step_s: float = 0.002


DEVICES = {
    "l4": Device(24 * GB, 300 * GB, 121e12),
    "a10g": Device(24 * GB, 600 * GB, 125e12),
    "l40s": Device(48 * GB, 864 * GB, 362e12),
    "a100": Device(80 * GB, 2039 * GB, 312e12),
    "h100": Device(80 * GB, 3350 * GB, 989e12),
    "h200": Device(141 * GB, 4800 * GB, 989e12),
    "b200": Device(192 * GB, 8000 * GB, 2250e12),
}
"""Memory, bandwidth and dense operations in 16 bits, from the data sheets of their maker."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """`cached` is the share of prompts' tokens that is in the prefix cache; `zipf` the exponent of
    adapters' popularity. `load` is how much of an engine may be used, so that queues stay short."""

    requests_s: float
    prompt: float
    output: float
    cached: float = 0.0
    adapters: int = 0
    slots: int = 0
    rank: int = 16
    zipf: float = 1.0
    load: float = 0.7


@dataclass(frozen=True, slots=True)
class EngineSpeed:
    """Seconds that the work of an engine takes, from measurements.

    `steps` has the time of a step for some numbers of sequences, without the `context_s` for each
    token that these hold. A prompt takes `prompt_s` for each token that is not cached, in steps of
    other sequences too, of which each computes at most `prompt_tokens` of it. A request takes
    `request_s` on its way, during which the engine does other things.
    """

    steps: Annotated[dict[_Count, _Seconds], msgspec.Meta(min_length=1, max_length=64)]
    context_s: _Seconds
    prompt_s: _Seconds
    prompt_tokens: _Count
    request_s: _Seconds

    @classmethod
    def read(cls, text: str) -> EngineSpeed:
        """From the JSON that `manage.py calibrate` wrote.

        Raises:
            CannotSize: it is something else.
        """
        try:
            found = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise CannotSize(
                f"the measured speed is not from manage.py calibrate: {error}"
            ) from None
        if not all(found.steps.values()):
            raise CannotSize("the measured speed must say that each step takes time")
        return found

    def step(self, sequences: float, held: float) -> float:
        """The seconds of a step of sequences that hold so many tokens each: between two measured
        numbers, or beyond the last two, on the line through both."""
        known = sorted(self.steps.items())
        after = bisect([count for count, _ in known], sequences)
        if after == 0 or len(known) == 1:
            alone = known[0][1]
        else:
            (low, below), (high, above) = known[min(after, len(known) - 1) - 1 :][:2]
            alone = below + max(0.0, above - below) / (high - low) * (sequences - low)
        return alone + sequences * held * self.context_s

    def parts(self, tokens: float) -> int:
        """The steps among which a prompt of so many tokens is divided."""
        return math.ceil(tokens / self.prompt_tokens)

    def chunks(self, tokens: float) -> float:
        """The steps among which prompts of about so many tokens are divided, on average."""
        return max(1.0, tokens / self.prompt_tokens + 0.5)


@dataclass(frozen=True, slots=True)
class SizingPlan:
    """`sequences` run on one engine at most, and `running` on average at this traffic; `capacity`
    is the requests a second of one engine with all its time. `resident` is the share of requests
    whose adapter has a slot."""

    weights: float
    kv_token: float
    adapter: float
    sequences: int
    running: float
    step_s: float
    """With all sequences."""
    prefill_s: float
    capacity: float
    engines: int
    ttft_s: float
    tpot_s: float
    tokens_s: float
    """Generated by one engine with all its time."""
    resident: float
    cost_million: float
    """For a million tokens of prompts and answers together."""


def plan(
    model: ModelSize,
    device: Device,
    traffic: Traffic,
    weights: str,
    cache: str,
    longest: int = 1024,
    speed: EngineSpeed | None = None,
) -> SizingPlan:
    """Size engines with these types of weights and of the KV cache; at most `longest` sequences run
    at once. With a measured `speed`, the device counts with its memory and price only.

    Raises:
        CannotSize: the model does not fit.
    """
    kv, adapter = model.kv_token(cache), model.adapter(traffic.rank, "bfloat16")
    read = model.parameters * BYTES[weights]
    room = device.memory * (1 - PROCESS_SHARE) - read - traffic.slots * adapter
    context = traffic.prompt + traffic.output
    sequences = min(longest, int(room // (context * kv))) if room > 0 else 0
    if not sequences:
        raise CannotSize(
            f"the model does not fit: weights take {read / 1e9:.1f} GB, {traffic.slots} slots for "
            f"adapters {traffic.slots * adapter / 1e9:.1f} GB, and one sequence of {context:.0f} "
            f"tokens {context * kv / 1e9:.2f} GB, of {device.memory / 1e9:.1f} GB"
        )
    speed = speed or _estimated(model, device, traffic, sequences, weights=read, kv=kv)
    held = traffic.prompt + traffic.output / 2  # of a sequence on average
    fresh = traffic.prompt * (1 - traffic.cached)
    prefill, chunks = speed.prompt_s * fresh, speed.chunks(fresh)
    steps = traffic.output + chunks - 1  # of a sequence: the last part of its prompt gives a token

    def life(running: int) -> float:
        return running * prefill + steps * speed.step(running, held)

    capacity = sequences / life(sequences)
    engines = max(1, math.ceil(traffic.requests_s / (capacity * traffic.load)))
    each = traffic.requests_s / engines
    lived, wait = _queue(life, each, sequences)
    running = each * lived  # J. Little, 1961
    own_prompt = prefill / (1 - each * prefill)  # in its steps are parts of other prompts
    tpot = (lived - own_prompt) / steps
    tokens = traffic.requests_s * context
    return SizingPlan(
        weights=read,
        kv_token=kv,
        adapter=adapter,
        sequences=sequences,
        running=running,
        step_s=speed.step(sequences, held),
        prefill_s=prefill,
        capacity=capacity,
        engines=engines,
        # A place among the sequences, the rest of the step under way, and its own steps.
        ttft_s=speed.request_s + wait + (min(1.0, running) / 2 + chunks) * tpot + own_prompt,
        tpot_s=tpot,
        tokens_s=capacity * traffic.output,
        resident=resident(traffic.adapters, traffic.zipf, traffic.slots),
        cost_million=engines * device.price / HOUR_S / tokens * MILLION if tokens else math.inf,
    )


def _estimated(
    model: ModelSize,
    device: Device,
    traffic: Traffic,
    sequences: int,
    *,
    weights: float,
    kv: float,
) -> EngineSpeed:
    """The speed by the data sheet, up to so many sequences of this traffic; `weights` and the `kv`
    of a token are in bytes."""
    popularity = _popularity(traffic.adapters, traffic.zipf)
    adapter = model.adapter(traffic.rank, "bfloat16")
    held = traffic.prompt + traffic.output / 2
    bandwidth = device.bandwidth * device.bandwidth_share
    token_s = 2 * model.parameters / (device.flops * device.flops_share)

    def step(running: int) -> float:
        among = min(traffic.slots, _distinct(popularity, running)) * adapter
        moved = (weights + running * held * kv + among) / bandwidth
        return max(moved, running * token_s) + device.step_s

    powers = {1 << exponent for exponent in range(sequences.bit_length())}
    steps = {count: step(count) for count in powers | {sequences}}
    return EngineSpeed(steps, 0.0, token_s, MAX_SIZE, 0.0)


def _queue(life: Callable[[int], float], rate: float, most: int) -> tuple[float, float]:
    """How long a request is among the sequences, of which there are `most` at once, and how long it
    waits for a place before, on average. `life` is the former by how many always run.

    A birth-death process (L. Kleinrock, Queueing Systems, 1975): requests arrive at random, and of
    n sequences one ends every life(n) / n.
    """
    found, lived = 1.0, 0.0  # the share of arrivals that find n others, of those that find no more
    for n in range(1, most + 1):
        more = found * rate * life(n) / n
        lived = (lived + found * life(n)) / (1 + more)
        found = more / (1 + more)
    full_s = life(most)
    waiting = found / (1 - rate * full_s / most)  # those that find all places taken
    every = 1 - found + waiting
    return (lived + waiting * full_s) / every, waiting / every / (most / full_s - rate)


# --- Adapters ------------------------------------------------------------------------------------


def _popularity(adapters: int, zipf: float) -> list[float]:
    ranks = [rank**-zipf for rank in range(1, adapters + 1)]
    whole = sum(ranks)
    return [one / whole for one in ranks]


def distinct(adapters: int, zipf: float, requests: float) -> float:
    """How many different adapters so many requests ask for, on average."""
    return _distinct(_popularity(adapters, zipf), requests)


def _distinct(popularity: Sequence[float], requests: float) -> float:
    return math.fsum(1 - (1 - one) ** requests for one in popularity)


def resident(adapters: int, zipf: float, slots: int) -> float:
    """The share of requests whose adapter is in one of the slots of an LRU cache."""
    if slots >= adapters:
        return 1.0
    if not slots:
        return 0.0
    shares = _popularity(adapters, zipf)
    low, high = 0.0, 1.0
    while sum(1 - math.exp(-one * high) for one in shares) < slots:
        high *= 2
    for _ in range(60):  # the time after which an adapter that nobody asks for loses its slot
        middle = (low + high) / 2
        filled = sum(1 - math.exp(-one * middle) for one in shares)
        low, high = (middle, high) if filled < slots else (low, middle)
    return sum(one * (1 - math.exp(-one * high)) for one in shares)


def break_even(
    plan: SizingPlan, device: Device, traffic: Traffic, prompt_price: float, output_price: float
) -> float:
    """The requests a second from which these engines cost less than a service with these prices for
    a million tokens; infinite if they never do. Below what one engine can take, one is paid for."""
    spent = (traffic.prompt * prompt_price + traffic.output * output_price) / MILLION
    if not spent:
        return math.inf
    one = device.price / HOUR_S / spent
    return one if one <= plan.capacity * traffic.load else math.inf


# --- In words ------------------------------------------------------------------------------------


def described(
    model: ModelSize,
    device: Device,
    traffic: Traffic,
    found: SizingPlan,
    pays_from: float | None = None,
    speed: EngineSpeed | None = None,
) -> list[tuple[str, str]]:
    """The plan and what it assumes, row by row; `pays_from` is what `break_even` returned."""
    rows = [
        ("Parameters", f"{model.parameters:,}"),
        ("Weights", f"{found.weights / GB:.2f} GB of {device.memory / GB:.0f} GB"),
        ("Cache of a token", f"{found.kv_token / 1024:.1f} KiB"),
        *(_measured(speed) if speed else _assumed(device)),
        ("Assumed: part of an engine that is used", f"{traffic.load:.0%}"),
        ("Sequences at once in an engine", f"{found.sequences:,}"),
        ("Of them at work, on average", f"{found.running:,.1f}"),
        ("Generated by a full engine", f"{found.tokens_s:,.0f} tokens/s"),
        ("Requests of a full engine", f"{found.capacity:.2f} /s"),
        ("Engines", f"{found.engines:,}"),
        ("Time to the first token", f"{found.ttft_s * 1000:,.0f} ms on average"),
        ("Time of each next token", f"{found.tpot_s * 1000:,.1f} ms on average"),
    ]
    if traffic.adapters:
        rows += [
            ("An adapter in a slot", f"{found.adapter / 1e6:.1f} MB"),
            ("Requests whose adapter has a slot", f"{found.resident:.1%}"),
        ]
    if device.price:
        rows.append(("A million tokens, at this traffic", f"{found.cost_million:.3f}"))
    if pays_from is not None:
        never = pays_from == math.inf
        value = "never, with these prices" if never else f"{pays_from:.2f} requests/s, one engine"
        rows.append(("Cheaper than the service from", value))
    return rows


def _assumed(device: Device) -> list[tuple[str, str]]:
    bandwidth, flops = device.bandwidth / GB, device.flops / 1e12
    return [
        ("Assumed: bandwidth reached", f"{device.bandwidth_share:.0%} of {bandwidth:,.0f} GB/s"),
        ("Assumed: operations reached", f"{device.flops_share:.0%} of {flops:,.0f} TFLOPS"),
        ("Assumed: each step takes besides", f"{device.step_s * 1000:.1f} ms"),
    ]


def _measured(speed: EngineSpeed) -> list[tuple[str, str]]:
    return [
        *(
            (f"Measured: a step of {count:,} sequences", f"{1000 * taken:.2f} ms")
            for count, taken in sorted(speed.steps.items())
        ),
        ("Measured: 1,000 tokens that one holds", f"{1e6 * speed.context_s:.3f} ms"),
        ("Measured: 1,000 tokens of prompts", f"{1e6 * speed.prompt_s:,.1f} ms"),
        ("Measured: a request on its way", f"{1000 * speed.request_s:.1f} ms"),
    ]
