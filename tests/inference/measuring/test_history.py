"""History of engines, derived from their counters: current rates, and points of the past."""

from __future__ import annotations

from typing import Any

from inference.gateway.measuring.history import (
    MAX_POINTS,
    MIN_S,
    STEP_S,
    WINDOW_S,
    History,
    LoadSample,
    RequestRate,
)


def counted(prompt: int, output: int, id: str = "e", **other: Any) -> dict[str, Any]:
    still = {"running": 0, "waiting": 0, "queued": 0, "kv_usage": 0.0}
    return {"id": id, "prompt_tokens": prompt, "completion_tokens": output} | still | other


def rates(history: History, engines: list[dict[str, Any]], at: float) -> dict[str, RequestRate]:
    history.note(engines, at)
    return history.rates()


def test_rates_are_over_the_last_seconds() -> None:
    history = History()
    assert rates(history, [counted(0, 0)], 0.0) == {}
    assert rates(history, [counted(5, 5)], MIN_S / 2) == {}
    assert rates(history, [counted(100, 20)], 2.0) == {"e": RequestRate(50.0, 10.0)}
    idle = {2.0 + i: rates(history, [counted(100, 20)], 2.0 + i) for i in range(1, 30)}
    assert idle[29.0] == {"e": RequestRate(0.0, 0.0)}
    assert idle[WINDOW_S]["e"].output == 2.0


def test_an_engine_that_counts_anew_or_was_away_has_no_rate_at_first() -> None:
    history = History()
    history.note([counted(100, 100)], 0.0)
    assert rates(history, [counted(0, 50)], 2.0) == {}
    assert rates(history, [counted(20, 90)], 4.0) == {"e": RequestRate(10.0, 20.0)}
    assert rates(history, [], 6.0) == {}
    assert rates(history, [counted(20, 90)], 8.0) == {}


def test_a_clock_that_is_set_back_begins_anew() -> None:
    history = History()
    for second in range(20):
        history.note([counted(second * 30, 0)], 3600.0 + second)
    assert rates(history, [counted(600, 0)], 0.0) == {}
    assert rates(history, [counted(640, 0)], 2.0) == {"e": RequestRate(20.0, 0.0)}
    history.note([counted(800, 0)], STEP_S)
    assert [point.at for point in history.points()] == [0.0, STEP_S]


def test_a_point_is_the_whole_step_before_it() -> None:
    history = History()
    for second in range(int(STEP_S) * 2 + 1):
        busy = counted(
            second * 30, min(second, 10) * 7, running=second, queued=2, waiting=1, kv_usage=0.5
        )
        history.note([busy], float(second))
    first, second_, third = history.points()
    assert [point.at for point in (first, second_, third)] == [0.0, STEP_S, 2 * STEP_S]
    assert first.loads == {"e": LoadSample(None, 0, 3, 0.5)}
    assert second_.loads == {"e": LoadSample(RequestRate(30.0, 7.0), 10, 3, 0.5)}
    assert third.loads["e"].rate == RequestRate(30.0, 0.0)


def test_engines_come_and_go_and_the_oldest_points_are_forgotten() -> None:
    history = History()
    for step in range(MAX_POINTS + 5):
        here = [counted(step, 0)] if step % 2 else [counted(step, 0), counted(step, 0, "other")]
        history.note(here, step * STEP_S)
    points = history.points()
    assert (len(points), points[0].at) == (MAX_POINTS, 5 * STEP_S)
    assert set(points[-1].loads) == {"e", "other"} and set(points[-2].loads) == {"e"}
    assert points[-1].loads["other"].rate is None
