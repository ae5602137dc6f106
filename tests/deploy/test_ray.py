"""Engines as replicas of Ray Serve: their number, their placement, and how they stop."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import pytest

from gateway.scaling import ray_serve
from gateway.scaling.fleet import ScaledFleet, ScaledPool, UnknownFleet
from gateway.scaling.ray_serve import ASK_EVERY_S, Demanded, deployed, main
from inference.agent.engines.profile import EngineProfile
from inference.process.environ import BadSetting


@dataclass
class Context:
    """The context that Serve passes to an autoscaling policy."""

    target_num_replicas: int = 3
    capacity_adjusted_min_replicas: int = 0
    capacity_adjusted_max_replicas: int = 8


def test_there_are_as_many_engines_as_requests_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for demand, wanted in ((0, 0), (1, 1), (16, 1), (17, 2), (1000, 8)):
        told = ScaledFleet({"base": ScaledPool(demand, 1)}, [])
        monkeypatch.setattr(ray_serve, "ask", lambda *_, told=told: told)
        policy = Demanded(["http://gateway"], "token", "base", 16)
        assert policy(Context())[0] == wanted
    assert Demanded([], "", "base", 1)(Context(capacity_adjusted_max_replicas=3))[0] == 3


def test_a_pool_that_was_never_there_begins_with_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    now, fleets = (
        0.0,
        [ScaledFleet({}, []), ScaledFleet({"base": ScaledPool(0, 1)}, []), ScaledFleet({}, [])],
    )
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(ray_serve, "ask", lambda *_: fleets.pop(0))
    policy, wanted = Demanded(["http://gateway"], "token", "base", 16), []
    while fleets:
        wanted.append(policy(Context())[0])
        now += ASK_EVERY_S
    assert wanted == [1, 0, 0]


def test_gateways_are_asked_now_and_then_and_while_none_answers_nothing_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    answers: list[ScaledFleet | UnknownFleet] = [
        ScaledFleet({"base": ScaledPool(40, 1)}, []),
        UnknownFleet(),
        ScaledFleet({}, []),
    ]
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def ask(*_: object) -> ScaledFleet:
        answer = answers.pop(0)
        if isinstance(answer, UnknownFleet):
            raise answer
        return answer

    monkeypatch.setattr(ray_serve, "ask", ask)
    policy = Demanded(["http://gateway"], "token", "base", 16)
    assert [policy(Context())[0] for _ in range(3)] == [3, 3, 3] and len(answers) == 2
    now += ASK_EVERY_S
    assert policy(Context(target_num_replicas=2))[0] == 2, "as many as there are"
    now += ASK_EVERY_S
    assert policy(Context())[0] == 0, "it is gone"


def test_an_engine_takes_the_gpus_of_its_profile_on_one_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_serve, "is_cpu_build", lambda: False)
    options = ray_serve._parser().parse_args(["--ray", "auto", "--cpus", "4", "--max", "5"])
    profile = EngineProfile(model="org/model", tensor_parallel_size=4, pipeline_parallel_size=2)
    made = deployed(options, profile, 600.0)
    assert made["ray_actor_options"] == {"num_cpus": 4.0, "num_gpus": 8, "resources": {}}
    assert made["graceful_shutdown_timeout_s"] >= 630
    assert made["autoscaling_config"]["min_replicas"] == 0
    assert made["autoscaling_config"]["initial_replicas"] == 1, "the pool must become known"
    assert made["autoscaling_config"]["max_replicas"] == 5
    monkeypatch.setattr(ray_serve, "is_cpu_build", lambda: True)
    assert deployed(options, profile, 600.0)["ray_actor_options"]["num_gpus"] == 0


def test_without_ray_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadSetting, match="pip install"):
        main(["--ray", "auto", "--", "--model", "org/model"])
