"""Which engine gets a request."""

from __future__ import annotations

import pytest

from inference.errors import NoEngine
from inference.gateway.routing import COLD_LOAD_COST, EngineState, choose
from inference.link.wire import EngineStats
from tests.inference.samples import MODEL, REF

pytestmark = pytest.mark.pure


def engine(id: str, load: int = 0, *, resident: bool = False, **fields: object) -> EngineState:
    stats = EngineStats(running=load, resident=[REF.name] if resident else [])
    return EngineState(id, MODEL, stats, **fields)  # type: ignore[arg-type]


def test_no_engine_says_which_model_and_when_to_retry() -> None:
    with pytest.raises(NoEngine, match="`base`") as refused:
        choose([], "base", None)
    assert refused.value.retry_after_s


def test_only_engines_of_the_base_model_that_take_work_count() -> None:
    with pytest.raises(NoEngine):
        choose([engine("a")], "another", None)
    with pytest.raises(NoEngine):
        choose([engine("a", draining=True)], "base", None)
    assert choose([engine("a", draining=True), engine("b", 99)], "base", None) == "b"


def test_the_least_loaded_goes_first() -> None:
    assert choose([engine("a", 2), engine("b", 1)], "base", None) == "b"
    assert choose([engine("b", 1), engine("a", 1)], "base", None) == "a"


def test_what_was_just_dispatched_counts_before_the_engine_reports_it() -> None:
    assert choose([engine("a", dispatched=3), engine("b", 2)], "base", None) == "b"


def test_an_engine_that_holds_the_adapter_goes_before_an_idle_one() -> None:
    assert choose([engine("a"), engine("b", 3, resident=True)], "base", REF) == "b"


def test_a_long_queue_is_worth_a_cold_load() -> None:
    busy = engine("b", COLD_LOAD_COST + 1, resident=True)
    assert choose([engine("a"), busy], "base", REF) == "a"
