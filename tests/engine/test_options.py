"""The agent's command-line options: defaults and refusals."""

from __future__ import annotations

import pytest

from inference.agent.__main__ import MAX_ID, parsed, parser, profile_of, queue_options
from inference.agent.engines.profile import BadProfile


def test_an_eighth_of_sequences_and_half_of_slots_are_reserved_by_default() -> None:
    queue = queue_options(parser().parse_args([]), 64, 4)
    assert (queue["reserved"], queue["slots_per_tenant"]) == (8, 2)
    assert queue_options(parser().parse_args([]), 1, 1)["reserved"] == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--reserved", "64"], "reserved is 64: it must be from 0 to 63"),
        (["--reserved", "-1"], "reserved is -1"),
        (["--slots-per-tenant", "0"], "slots_per_tenant is 0"),
        (["--max-queued", "0"], "max_queued is 0: it must be at least 1"),
        (["--max-queued-per-tenant", "0"], "max_queued_per_tenant is 0"),
        (["--max-queued-bytes", "64M"], "max_queued_bytes is 67108864: it must be at least"),
        (["--max-unbilled", "0"], "max_unbilled is 0"),
    ],
)
def test_a_bad_option_is_named(option: list[str], message: str) -> None:
    with pytest.raises(BadProfile, match=message):
        queue_options(parser().parse_args(option), 64, 4)


@pytest.mark.parametrize("id", ["", (MAX_ID + 1) * "e"])
def test_an_engine_id_must_fit_in_the_ledger(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--id", id])
    assert "--id: it must have 1 to 255 characters" in capsys.readouterr().err


def test_vllms_names_of_options_are_taken_as_well() -> None:
    vllms = ["--served-model-name", "house", "--tool-call-parser", "hermes"]
    vllms += ["--enable-auto-tool-choice", "--kv-cache-memory-bytes", "2.5G"]
    ours = ["--served-name", "house", "--tool-parser", "hermes", "--kv-bytes", "2560M"]
    for arguments in (vllms, ours):
        options = parsed(arguments)
        assert (options.served_name, options.tool_parser) == ("house", "hermes")
        assert options.kv_cache_memory_bytes == 2560 << 20


@pytest.mark.vllm
def test_every_engine_argument_of_vllm_is_a_flag() -> None:
    flags = ["--seed", "7", "--kv-cache-dtype=fp8", "--no-enable-chunked-prefill"]
    options = parsed(
        [*flags, "--enable-lora", "--max-loras", "8", "--extra", '{"stream_interval": 2}']
    )
    assert options.max_loras == 8
    assert options.extra == {
        "seed": 7, "kv_cache_dtype": "fp8", "enable_chunked_prefill": False, "stream_interval": 2
    }  # fmt: skip


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seed", "soon"], "argument --seed: invalid int value: 'soon'"),
        (["--host", "0.0.0.0"], "neither .* nor vLLM's engine has these options: --host 0.0.0.0"),
        (["--trust-remote-code"], "trust_remote_code can be neither"),
        (["--no-enable-prefix-caching"], "enable_prefix_caching can be neither"),
    ],
)
def test_flags_that_are_refused(flags: list[str], message: str) -> None:
    with pytest.raises(BadProfile, match=message):
        profile_of(parsed(["--model", "org/base", *flags]))


def test_a_synthetic_engine_has_no_flags_of_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(["--engine", "synthetic", "--seed", "7"])
    assert "unrecognized arguments: --seed 7" in capsys.readouterr().err
