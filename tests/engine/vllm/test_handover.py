"""What prefill engines hand over: only what may be read is read. `make nixl` has real transfers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from inference.agent.engines.engine import Engine
from inference.agent.engines.vllm import environment  # noqa: F401
from inference.errors import EngineFailed
from inference.link.wire import Handover
from tests.engine.driving import run, work_of

pytestmark = pytest.mark.vllm

KEPT: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": ([1, 2, 3],),
    "remote_engine_id": "b728f1c9",
    "remote_request_id": "request-1-2f",
    "remote_host": "localhost",
    "remote_port": 5600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": 90,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "prompt": "ab" * 32,
}


def kept(**changes: Any) -> Handover:
    from inference.agent.engines.vllm.handover import handed_over

    made = handed_over(KEPT | changes)
    assert made is not None
    return made


def test_what_vllm_keeps_comes_back_with_the_time_until_which_it_does() -> None:
    from inference.agent.engines.vllm.handover import taken

    before = time.perf_counter()
    params = taken(msgspec.structs.replace(kept(), valid_s=9.0))
    assert before + 9.0 <= params.pop("remote_blocks_expiry_time") <= time.perf_counter() + 9.0
    assert params.keys() == KEPT.keys() - {"remote_blocks_expiry_time"}
    assert params["remote_block_ids"] == [[1, 2, 3]]


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_block_ids": ()},
        {"remote_block_ids": ([-1],)},
        {"remote_block_ids": [[0]] * 17},
        {"remote_block_ids": [[0] * ((1 << 16) + 1)]},
        {"remote_host": ""},
        {"remote_host": "h" * 256},
        {"remote_port": 0},
        {"remote_port": 1 << 16},
        {"remote_request_id": "r" * 513},
        {"tp_size": 0},
        {"transfer_mode": "push"},
        {"do_remote_decode": True},
        {"prompt": "another"},
        {"prompt": None},
    ],
)
def test_no_other_parameters_pass_on_either_side(changes: dict[str, Any]) -> None:
    from inference.agent.engines.vllm.handover import handed_over, taken

    assert handed_over(KEPT | changes) is None
    told = {name: value for name, value in (KEPT | changes).items() if value is not None}
    with pytest.raises(EngineFailed, match="handover is not valid"):
        taken(Handover(msgspec.msgpack.encode(told), 9.0))


@pytest.mark.parametrize("params", [b"", b"\xc1", msgspec.msgpack.encode([1])])
def test_bytes_that_are_no_parameters_are_refused(params: bytes) -> None:
    from inference.agent.engines.vllm.handover import taken

    with pytest.raises(EngineFailed, match="handover is not valid"):
        taken(Handover(params, 9.0))


def test_a_handover_is_used_for_one_text() -> None:
    from vllm.sampling_params import SamplingParams

    from inference.agent.engines.vllm.handover import PARAMS, fetching

    work = replace(work_of(), handover=kept())
    assert PARAMS in fetching(SamplingParams(), work).extra_args
    assert fetching(SamplingParams(), work).extra_args is None
    work = replace(work_of(), handover=kept())
    assert fetching(SamplingParams(n=2), work).extra_args is None
    assert fetching(SamplingParams(), work).extra_args is None


def request(
    salt: str = "a", adapter: str | None = "acme/support@1", ids: tuple[int, ...] = (1, 2)
) -> Any:
    lora = None if adapter is None else SimpleNamespace(lora_name=adapter)
    return SimpleNamespace(cache_salt=salt, lora_request=lora, prompt_token_ids=list(ids))


def test_the_digest_tells_tenants_adapters_and_prompts_apart() -> None:
    from inference.agent.engines.vllm.nixl import prompt_digest

    several = [
        request(),
        request(salt="b"),
        request(salt=""),
        request(adapter=None),
        request(adapter="acme/support@2"),
        request(ids=(1, 3)),
        request(ids=(1, 2, 0)),
        request(salt="a\0acme/support@1", adapter=None),
    ]
    assert len({prompt_digest(one) for one in several}) == len(several)
    assert prompt_digest(request()) == prompt_digest(request())


@pytest.mark.parametrize(
    ("until", "late"), [(lambda: time.perf_counter() + 60, False), (time.perf_counter, True)]
)
def test_what_was_read_after_the_blocks_may_have_been_freed_counts_as_failed(
    until: Callable[[], float], late: bool
) -> None:
    from inference.agent.engines.vllm.nixl import LeasedWorker

    worker = cast(Any, object.__new__(LeasedWorker))
    remote = SimpleNamespace(blocks_expiry_time=until())
    worker._recving_metadata = {"r": SimpleNamespace(remote=remote)}
    done, failed = worker._pop_done_transfers({"r": []})
    assert done == {"r"} and failed == ({"r"} if late else set())


@pytest.mark.asyncio(loop_scope="session")
async def test_an_engine_without_the_role_computes_no_prompts_for_others(vllm: Engine) -> None:
    work = replace(work_of(), prefill=True)
    with pytest.raises(EngineFailed, match="does not compute prompts for others"):
        await run(vllm, work)
    assert work.meter.prompt_tokens == 0
