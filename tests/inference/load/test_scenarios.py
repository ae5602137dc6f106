"""Plans that are drawn: who, when, with which prompts."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inference.load.arrivals import even, poisson
from inference.load.callers import LoadCaller, read_callers
from inference.load.lengths import fixed
from inference.load.planned import BadLoadPlan, PlannedRequest
from inference.load.prompts import PromptText
from inference.load.scenarios import LoadScenario, TenantFlood

CALLERS = [LoadCaller(f"t{i}", (f"t{i}-a", f"t{i}-b")) for i in range(3)]


def planned(**options: Any) -> list[PlannedRequest]:
    usual: dict[str, Any] = {
        "callers": CALLERS, "times": poisson, "rate": 20.0, "duration_s": 100.0,
        "lengths": fixed(120, 30),
    }  # fmt: skip
    return LoadScenario(**(usual | options)).plan()


def test_a_plan_has_the_rate_and_the_popularity() -> None:
    found = planned(duration_s=1000.0, models_zipf=0.0)
    assert len(found) == pytest.approx(20_000, rel=0.03)
    assert [one.at_s for one in found] == sorted(one.at_s for one in found)
    tenants = Counter(one.tenant for one in found)
    for rank, share in enumerate((6 / 11, 3 / 11, 2 / 11)):
        assert tenants[f"t{rank}"] / len(found) == pytest.approx(share, rel=0.05)
    models = Counter(one.model for one in found if one.tenant == "t0")
    assert models["t0-a"] / models["t0-b"] == pytest.approx(1, rel=0.1)


def test_equal_seeds_make_equal_plans() -> None:
    assert planned(seed=4) == planned(seed=4) != planned(seed=5)


def test_prompts_for_a_model_begin_with_its_system_prompt() -> None:
    found = planned(prefix_tokens=50)
    assert all(one.prompt_tokens == 120 and len(one.pieces) == 2 for one in found)
    firsts = {(one.tenant, one.model, one.pieces[0]) for one in found}
    assert len(firsts) == 6 and len({first for _, _, first in firsts}) == 6
    assert len({one.pieces[1] for one in found}) == len(found)


def test_turns_of_a_session_continue_it() -> None:
    found = planned(turns=4.0, think_s=3.0, duration_s=2000.0)
    sessions: dict[object, list[PlannedRequest]] = {}
    for one in found:
        sessions.setdefault(one.pieces[0], []).append(one)
    assert len(found) / len(sessions) == pytest.approx(4, rel=0.05)
    gaps = []
    for turns in sessions.values():
        for before, after in itertools.pairwise(turns):
            assert after.pieces[: len(before.pieces)] == before.pieces
            assert after.pieces[len(before.pieces)][1] == before.output_tokens
            assert (after.tenant, after.model) == (before.tenant, before.model)
            gaps.append(after.at_s - before.at_s)
    assert sum(gaps) / len(gaps) == pytest.approx(3, rel=0.05)


def test_prompts_stay_below_the_longest() -> None:
    found = planned(turns=50.0, think_s=0.1, longest=300)
    assert 250 < max(one.prompt_tokens for one in found) <= 300
    assert max(one.prompt_tokens for one in planned(longest=64)) == 64


def test_a_flood_is_one_tenants_for_its_time() -> None:
    flood = TenantFlood(CALLERS[2], rate=100.0, from_s=30.0, for_s=10.0)
    usual, flooded = planned(), planned(flood=flood)
    more = [one for one in flooded if one not in set(usual)]
    assert len(flooded) == len(usual) + len(more)
    assert len(more) == pytest.approx(1000, rel=0.1)
    assert {one.tenant for one in more} == {"t2"}
    assert 30 <= min(one.at_s for one in more) and max(one.at_s for one in more) < 40


def test_a_thrash_asks_for_all_models_in_turn() -> None:
    found = planned(thrash=True, times=even, rate=1.0, duration_s=12.0)
    names = [one.model for one in found]
    assert names[:6] == names[6:] == [m for one in CALLERS for m in one.models]


@pytest.mark.parametrize(
    "options",
    [{"rate": 1e5}, {"flood": TenantFlood(CALLERS[0], 1e6, 0, 100)}],
)
def test_too_many_requests_are_refused_before_they_are_made(options: dict[str, Any]) -> None:
    with pytest.raises(BadLoadPlan, match="at most 1,000,000"):
        planned(**options)


# --- Prompts --------------------------------------------------------------------------------------


def test_prompts_share_text_as_they_share_pieces() -> None:
    text = PromptText("salt")
    ask = partial(PlannedRequest, 0.0, "t", "m", output_tokens=1)
    one, other = text.of(ask(((1, 30), (2, 9)))), text.of(ask(((1, 30), (3, 9))))
    assert one.split()[:30] == other.split()[:30] and one != other
    assert len(one.split()) == 39
    assert PromptText("other").of(ask(((1, 30), (2, 9)))).split()[:30] != one.split()[:30]


def test_words_are_as_many_as_tokens_need() -> None:
    text = PromptText("salt").measured((8, 8 * 2 + 12), (136, 136 * 2 + 12))
    assert (text.tokens_per_word, text.overhead_tokens) == (2.0, 12.0)
    ask = partial(PlannedRequest, 0.0, "t", "m", output_tokens=1)
    assert len(text.of(ask(((1, 112),))).split()) == 50
    # The template's tokens are taken off the first pieces, in each prompt alike.
    assert len(text.of(ask(((1, 5), (2, 107)))).split()) == 50
    assert len(text.of(ask(((1, 3),))).split()) == 1


# --- The file of tenants --------------------------------------------------------------------------


def tenants(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "tenants.toml"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_tenants_are_read_in_order(tmp_path: Path) -> None:
    file = tenants(tmp_path, '[b]\nkey="k"\nmodels=["x","y"]\n[a]\nmodels=["z"]\n')
    found = read_callers(file)
    assert found == [LoadCaller("b", ("x", "y"), "k"), LoadCaller("a", ("z",))]
    assert "'k'" not in repr(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 tenants: it must have 1 to"),
        ("[", "can't be read"),
        ("a=1", r"a must be a table, \[a\]"),
        ("[a]\nmodels=[]", r"models of \[a\] must be a list of at least one name"),
        ("[a]\nmodels='x'", r"models of \[a\] must be a list"),
        ("[a]\nmodel='x'", r"\[a\] has an unknown field model"),
        ("[a]\nkey='ü'\nmodels=['x']", r"key of \[a\] must be a text of printable ASCII"),
        ('[a]\nkey="a\\r\\nb"\nmodels=["x"]', r"key of \[a\] must be a text of printable ASCII"),
    ],
)
def test_bad_tenants_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadLoadPlan, match=said):
        read_callers(tenants(tmp_path, text))


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    text = '[a]\nkey="k"\nmodels=["x"]\n'
    with pytest.raises(BadLoadPlan, match="run chmod 600"):
        read_callers(tenants(tmp_path, text, 0o644))
    assert read_callers(tenants(tmp_path, '[a]\nmodels=["x"]\n', 0o644))
