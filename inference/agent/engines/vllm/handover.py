"""What a prefill engine hands over to a decode engine, on both ends: vLLM's NIXL parameters.

NIXL reads blocks of another process's KV cache by their numbers. vLLM's scheduler gives those of a
finished prompt as `kv_transfer_params`, and holds the blocks for LEASE_S, or until they were read.
`nixl.py` has the connector, which also checks whose prompt it is.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from vllm.config import KVTransferConfig
from vllm.sampling_params import RequestOutputKind, SamplingParams

from inference.agent.engines.engine import EngineWork
from inference.errors import EngineFailed
from inference.link.wire import MAX_HANDOVER_BYTES, Handover

MODULE = "inference.agent.engines.vllm.nixl"
"""Where vLLM finds our connector."""
LEASE_S = 60.0
"""How long a prefill engine keeps a prompt that nobody reads. Gateways wait less for a prompt
(`routing.prefill`), and a decode engine reads only within what is left."""
MAX_BLOCKS = 1 << 16
SIDE_CHANNEL_HOST, SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Parallel = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Block = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Blocks = Annotated[list[Block], msgspec.Meta(max_length=MAX_BLOCKS)]


class NixlParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `kv_transfer_params` for a decode engine. `prompt` names the tenant, the adapter and
    the tokens whose keys and values these are (`nixl.prompt_digest`)."""

    do_remote_prefill: Literal[True]
    do_remote_decode: Literal[False]
    remote_block_ids: Annotated[list[Blocks], msgspec.Meta(min_length=1, max_length=16)]
    remote_engine_id: Name
    remote_request_id: Name
    remote_host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    remote_port: Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)]
    tp_size: Parallel
    dcp_size: Parallel
    pp_size: Parallel
    remote_num_tokens: Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)]
    transfer_mode: Literal["pull"]
    prompt: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(NixlParams)

PARAMS = "kv_transfer_params"


def keeping() -> SamplingParams:
    """The parameters with which a prefill engine computes a prompt and keeps it."""
    asked = {"do_remote_decode": True, "do_remote_prefill": False}
    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={PARAMS: asked},
    )


def fetching(params: SamplingParams, work: EngineWork) -> SamplingParams:
    """The same parameters for a prompt that is handed over, if the work has one. Mutates both.

    A handover is used once: when its blocks were read, the other engine frees them, and who read
    them again might find another tenant's prompt there.
    """
    handover, work.handover = work.handover, None
    if handover is not None and params.n == 1:
        params.extra_args = (params.extra_args or {}) | {PARAMS: taken(handover)}
    return params


def transfer_config(given: dict[str, Any] | KVTransferConfig) -> KVTransferConfig:
    """vLLM's settings of an engine with a role: our connector, which computes itself what it can't
    fetch."""
    config = KVTransferConfig(**given) if isinstance(given, dict) else replace(given)
    config.kv_connector_module_path = MODULE
    config.kv_load_failure_policy = "recompute"
    config.kv_connector_extra_config = {"kv_lease_duration": int(LEASE_S)}
    return config


def prepare(config: KVTransferConfig) -> None:
    """Set the environment variables from which NIXL and UCX read the rest, unless they are set."""
    ours = {}
    if config.kv_buffer_device == "cpu":
        ours["UCX_TLS"] = "tcp,self"  # there is nothing else that it could find
        if os.environ.get(SIDE_CHANNEL_HOST, "localhost") in LOOPBACK:
            ours["UCX_NET_DEVICES"] = "lo"  # else it listens on all interfaces
    for name, value in ours.items():
        os.environ.setdefault(name, value)
    if SIDE_CHANNEL not in os.environ:  # several engines may share the machine
        with socket.socket() as free:
            free.bind(("", 0))
            os.environ[SIDE_CHANNEL] = str(free.getsockname()[1])


def handed_over(params: dict[str, Any] | None) -> Handover | None:
    """What vLLM says of a prompt that it keeps; None if it keeps nothing that can be fetched."""
    if params is None:
        return None
    fields = {name: params.get(name) for name in NixlParams.__struct_fields__}
    try:
        encoded = _encode(msgspec.convert(fields, NixlParams))
    except msgspec.ValidationError:
        return None
    return Handover(encoded, LEASE_S) if len(encoded) <= MAX_HANDOVER_BYTES else None


def taken(handover: Handover) -> dict[str, Any]:
    """The parameters with which vLLM fetches the prompt, until its validity ends.

    Raises:
        EngineFailed: they are not what a prefill engine says.
    """
    try:
        params = msgspec.structs.asdict(_decoder.decode(handover.params))
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise EngineFailed(f"The handover is not valid: {error}.") from None
    return params | {"remote_blocks_expiry_time": time.perf_counter() + handover.valid_s}
