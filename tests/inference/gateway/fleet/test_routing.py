"""Which engine is chosen for a request."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from inference.errors import NoEngine
from inference.gateway.routing.engine_state import LOAD_TOKENS, EngineState, Needs
from inference.gateway.routing.engines import Engines
from inference.link.engine_info import AdapterRef, EngineStats, ModelInfo
from inference.link.wire import Stats
from tests.inference.routing.chosen import choose
from tests.inference.samples import MODEL, REF

pytestmark = pytest.mark.pure


def engine(id: str, load: int = 0, *, resident: bool = False, **fields: object) -> EngineState:
    stats = EngineStats(queued_tokens=512 * load, resident=[REF.name] if resident else [])
    return EngineState(id, MODEL, stats, **fields)  # type: ignore[arg-type]


def test_no_engine_says_which_model_and_when_to_retry() -> None:
    with pytest.raises(NoEngine, match="`base`") as refused:
        choose([], Needs("base"))
    assert refused.value.retry_after_s


@pytest.mark.parametrize(
    ("done", "asked", "never"),
    [
        ([["chat", "tokenize"]], "embeddings", True),
        ([["embeddings", "score"]], "chat", True),
        ([["embeddings"], ["chat"]], "chat", False),
        ([["embeddings"]], "score", False),
        ([["chat"]], "tokenize", False),
        ([["chat"]], "poem", False),
        ([], "embeddings", False),
    ],
)
def test_an_operation_that_no_engine_supports_is_refused_for_good(
    done: list[list[str]], asked: str, never: bool
) -> None:
    engines = [
        EngineState(f"e{i}", msgspec.structs.replace(MODEL, operations=operations))
        for i, operations in enumerate(done)
    ]
    other = EngineState("other", msgspec.structs.replace(MODEL, name="other", operations=[asked]))
    error = Engines([*engines, other]).permanent_refusal(Needs(MODEL.name, operation=asked))
    assert (error is not None) == never
    if error is not None:
        assert error.param == "model" and "/v1/" in error.message


def test_only_engines_of_the_base_model_that_take_work_count() -> None:
    with pytest.raises(NoEngine):
        choose([engine("a")], Needs("another"))
    with pytest.raises(NoEngine):
        choose([engine("a", draining=True)], Needs("base"))
    assert choose([engine("a", draining=True), engine("b", 99)], Needs("base")) == "b"


def test_the_least_loaded_goes_first() -> None:
    assert choose([engine("a", 2), engine("b", 1)], Needs("base")) == "b"


def test_an_engine_that_holds_the_adapter_goes_before_an_idle_one() -> None:
    assert choose([engine("a"), engine("b", 3, resident=True)], Needs("base", REF)) == "b"


def test_a_long_queue_is_worth_a_cold_load() -> None:
    busy = engine("b", resident=True)
    for queued, chosen in ((LOAD_TOKENS // 2, "b"), (2 * LOAD_TOKENS, "a")):
        busy.note(Stats(EngineStats(queued_tokens=queued)))
        assert choose([engine("a"), busy], Needs("base", REF)) == chosen


def able(**fields: object) -> ModelInfo:
    return msgspec.structs.replace(MODEL, **fields)


def state(id: str, info: ModelInfo, **fields: object) -> EngineState:
    return EngineState(id, info, **fields)  # type: ignore[arg-type]


ADAPTER = AdapterRef("acme/x@" + "b" * 64, "b" * 64, 32, ("q_proj", "v_proj"))
WIDE = {f"model.layers.0.self_attn.{name}": (64, 64) for name in ("q_proj", "v_proj")}


@pytest.mark.parametrize(
    ("needs", "unable", "capable", "missing"),
    [
        ({"adapter": ADAPTER}, {"modules": WIDE}, {"modules": WIDE, "max_lora_rank": 32},
         "rank 32 (the engine's maximum is 16)"),
        ({"adapter": ADAPTER}, {"max_lora_rank": 64}, {"modules": WIDE, "max_lora_rank": 64},
         "adapters of the modules v_proj"),
        ({"operation": "embedding"}, {"operations": ["chat"]},
         {"operations": ["chat", "embedding"]}, "the operation `embedding`"),
    ],
)  # fmt: skip
def test_only_an_engine_that_can_do_it_gets_a_request(
    needs: dict[str, Any], unable: dict[str, Any], capable: dict[str, Any], missing: str
) -> None:
    idle, busy = state("a", able(**unable)), state("b", able(**capable), dispatched=99)
    assert choose([idle, busy], Needs("base", **needs)) == "b"
    with pytest.raises(NoEngine, match=re.escape(missing)) as refused:
        choose([idle], Needs("base", **needs))
    assert refused.value.retry_after_s


@pytest.mark.parametrize(
    ("needs", "unable", "capable"),
    [
        ({"tokens": 3000}, {"max_model_len": 2048}, {"max_model_len": 4096}),
        ({"parsers": ("tool",)}, {"parsers": {}}, {"parsers": {"tool": "hermes"}}),
    ],
)
def test_what_no_engine_offers_is_left_to_an_engine_to_refuse(
    needs: dict[str, Any], unable: dict[str, Any], capable: dict[str, Any]
) -> None:
    said = {"revision": "r"}
    idle = state("a", able(**said, **unable))
    busy = state("b", able(**said, **capable), dispatched=99)
    assert choose([idle, busy], Needs("base", **needs)) == "b"
    assert choose([idle], Needs("base", **needs)) == "a"


def test_an_engine_that_does_not_say_what_it_can_do_is_taken_to_do_it() -> None:
    needs = Needs("base", operation="chat", parsers=("tool",))
    silent = state("a", MODEL)
    assert choose([silent, state("b", able(revision="r"))], needs) == "a"


def test_the_reason_is_that_of_the_engine_that_lacks_least() -> None:
    worst, best = state("a", MODEL), state("b", able(modules=WIDE))
    with pytest.raises(NoEngine) as refused:
        choose([worst, best], Needs("base", ADAPTER))
    assert "rank 32" in refused.value.message and "v_proj" not in refused.value.message


def test_reports_of_residency_have_what_changed() -> None:
    new = state("b", MODEL)
    new.note(Stats(EngineStats(), loaded=["x", "y"]))
    new.note(Stats(EngineStats()))
    assert list(new.resident) == ["x", "y"]
    new.note(Stats(EngineStats(), loaded=["x"], evicted=["y", "never there"]))
    assert list(new.resident) == ["x"]
