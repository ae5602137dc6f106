from __future__ import annotations

import msgspec
import pytest

from inference.errors import NoEngine
from inference.gateway.routing import engines
from inference.gateway.routing.engine_state import EngineState, Needs
from inference.gateway.routing.engines import Able, Engines
from inference.link.engine_info import ModelInfo
from tests.inference.samples import MODEL, REF

pytestmark = pytest.mark.pure

LARGE = msgspec.structs.replace(MODEL, max_lora_rank=64)


def fleet(*ids: str, model: ModelInfo = MODEL) -> list[EngineState]:
    return [EngineState(id, model) for id in ids]


def ids(some: list[EngineState]) -> list[str]:
    return [engine.id for engine in some]


def test_able_engines_are_cached_by_needs() -> None:
    small, large = fleet("a", "c"), fleet("b", model=LARGE)
    all = Engines([small[0], *large, small[1]])
    high = Needs("base", msgspec.structs.replace(REF, rank=64))
    assert ids(all.able(Needs("base"))) == ["a", "b", "c"], "in their order"
    assert ids(all.able(high)) == ["b"]
    assert all.able(high) is all.able(high)
    assert ids(all.able(Needs("base"), frozenset([small[0].pool]))) == ["a", "c"]


def test_an_engine_with_certain_adapters_gets_no_others() -> None:
    certain = msgspec.structs.replace(MODEL, revision="2", only_adapters=[REF.digest])
    all = Engines(fleet("a") + fleet("b", model=certain))
    other = msgspec.structs.replace(REF, digest="f" * 64)
    assert ids(all.able(Needs("base", REF))) == ids(all.able(Needs("base"))) == ["a", "b"]
    assert ids(all.able(Needs("base", other))) == ["a"]
    with pytest.raises(NoEngine, match="a server that was started with the adapter ffff"):
        Engines(fleet("b", model=certain)).able(Needs("base", other))


def test_the_order_of_homes_is_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "MAX_HOMES", 2)
    able = Able(fleet(*"abcdefgh"))
    orders = {home: ids(Able(able).nearest(home, 8)) for home in (1, 2, 3)}
    assert len(set(map(tuple, orders.values()))) == 3
    for count in (2, 4, 3, 8, 9, 1):
        for home, order in orders.items():
            assert ids(able.nearest(home, count)) == order[:count]


def test_unknown_operations_of_newer_engines_are_no_refusal() -> None:
    later = msgspec.structs.replace(MODEL, operations=["another"])
    assert (
        Engines(fleet("a", model=later)).permanent_refusal(Needs("base", operation="chat")) is None
    )
