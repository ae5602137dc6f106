"""`manage.py engines --ray ADDRESS`: the engines of a pool as replicas of Ray Serve.

Ray places them on nodes with enough GPUs, adds nodes if its own autoscaler can, restarts engines
that die and stops idle ones, down to none. No request passes through Serve: a replica runs
`manage.py engine`, which dials the gateways as usual. The number of replicas follows from the
demand for the pool that a gateway reports.

Ray's nodes need the same as this process: Lorikeet, importable (as in its image), and the model. An
engine uses one node, and as many of its GPUs as its profile says. Ray keeps the engines' credential
and LORIKEET_METRICS_TOKEN, and any client that reaches its ports can run code there, so its ports
must be private.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import time
import uuid
from typing import TYPE_CHECKING, Any

import httpx
import structlog

from gateway.scaling.fleet import UnknownFleet, ask
from gateway.start import MANAGE
from inference.agent.__main__ import parser as engine_parser
from inference.agent.__main__ import profile_of
from inference.agent.engines.profile import BadProfile, EngineProfile, is_cpu_build
from inference.process import environ, logs

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

log = structlog.get_logger(__name__)

HELP = (
    "Run the engines of one pool on a Ray cluster, as many as the demand needs. The "
    "options after `--` are those of `manage.py engine`; the gateways of its --gateway "
    "are queried for the demand."
)
ASK_EVERY_S = 2.0
"""Pause between queries of gateways: Serve's controller asks for a decision ten times a second, and
blocks on it."""
STOPS_S = 60
"""How much longer than its drain an engine may take to end."""


class Demanded:
    """Serve's autoscaling policy: one replica for each `per_engine` requests."""

    def __init__(self, gateways: list[str], token: str, pool: str, per_engine: int) -> None:
        self._gateways, self._token = gateways, token
        self._pool, self._per_engine = pool, per_engine
        self._asked_at = -math.inf
        self._known: int | None = None
        self._met = False
        """Whether the pool has had an engine. Until then one is started without demand, because
        only its first engine makes the pool known to clients."""

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        wanted = self._wanted(time.monotonic())
        if wanted is None:  # unknown: keep the present number
            wanted = context.target_num_replicas
        low, high = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return max(low, min(high, wanted)), {}

    def _wanted(self, now: float) -> int | None:
        if now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            try:
                with httpx.Client(trust_env=False) as client:
                    fleet = ask(client, self._gateways, self._token)
            except UnknownFleet:
                self._known = None
            else:
                pool = fleet.pools.get(self._pool)
                self._met |= pool is not None and pool.engines > 0
                least = 0 if self._met else 1
                self._known = max(least, math.ceil(pool.demand / self._per_engine) if pool else 0)
        return self._known


policy: Demanded
"""Serve looks a policy up by its module and name, and sends the object that it finds there."""


class RayEngine:
    """A replica: runs one engine agent as a separate process, which ends with it."""

    def __init__(self, arguments: list[str], credential: str) -> None:
        id = f"{socket.gethostname()}-{uuid.uuid4().hex[:6]}"
        command = [*MANAGE, "engine", "--id", id, *arguments]
        environment = os.environ | {"LORIKEET_ENGINE_CREDENTIAL": credential}
        environment.pop("LORIKEET_METRICS_TOKEN", None)
        self._process = subprocess.Popen(command, env=environment)

    def check_health(self) -> None:
        """Called by Serve, which replaces the replica if this raises."""
        if (status := self._process.poll()) is not None:
            raise RuntimeError(f"the engine ended with status {status}")

    async def __del__(self) -> None:
        """Stop the agent. Serve waits for this as long as the deployment's grace period."""
        self._process.send_signal(signal.SIGTERM)
        while self._process.poll() is None:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.2)


def main(arguments: list[str]) -> None:
    """Deploy the pool, or remove it.

    Raises:
        BadSetting: with what is wrong.
    """
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, of_engine = _parser().parse_args(arguments[:at]), arguments[at + 1 :]
    try:
        import ray
        from ray import serve
    except ImportError:
        raise environ.BadSetting("Ray is not installed: pip install 'ray[serve]'") from None
    logs.configure("engines", os.environ.get("LORIKEET_LOG_LEVEL", "info"))
    try:
        engine = engine_parser().parse_args(of_engine)
        profile = profile_of(engine)
    except BadProfile as error:
        raise environ.BadSetting(str(error)) from None
    name = f"engines-{profile.name}"
    ray.init(options.ray, log_to_driver=False)
    if options.stop:
        serve.delete(name)
        return
    global policy
    policy = Demanded(
        environ.base_urls(engine.gateway),
        environ.secret("LORIKEET_METRICS_TOKEN", min_length=1),
        profile.name,
        options.per_engine,
    )
    deployment = serve.deployment(name="Engine", **deployed(options, profile, engine.drain))(
        RayEngine
    )
    serve.start(proxy_location="Disabled")
    application = deployment.bind(of_engine, environ.secret("LORIKEET_ENGINE_CREDENTIAL"))
    serve.run(application, name=name, route_prefix=None)
    log.info("engines_deployed", pool=profile.name, least=options.min, most=options.max)


def deployed(options: argparse.Namespace, profile: EngineProfile, drain_s: float) -> dict[str, Any]:
    """The deployment's options: its replicas' placement, number and shutdown."""
    return {
        "ray_actor_options": {
            "num_cpus": options.cpus,
            "num_gpus": 0 if is_cpu_build() else profile.devices,  # all of them on one node
            "resources": options.resources,
        },
        "max_ongoing_requests": 1,  # there are none
        "graceful_shutdown_timeout_s": drain_s + STOPS_S,
        "health_check_period_s": 2,
        "autoscaling_config": {
            "min_replicas": options.min,
            "max_replicas": options.max,
            "initial_replicas": max(1, options.min),
            "upscale_delay_s": options.up_after,
            "downscale_delay_s": options.down_after,
            "policy": {"policy_function": f"{__name__}:policy"},
        },
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "manage.py engines",
        description=HELP,
        usage="%(prog)s --ray ADDRESS [options] -- [options of manage.py engine]",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--ray",
        required=True,
        metavar="ADDRESS",
        help="address of the cluster, such as 10.0.0.1:6379",
    )
    add("--min", type=int, default=0, help="minimum number of engines, also without requests")
    add("--max", type=int, default=8, help="most engines")
    add("--per-engine", type=int, default=16, help="requests per engine")
    add("--cpus", type=float, default=1.0, help="CPUs that Ray reserves for an engine")
    add(
        "--resources",
        type=json.loads,
        default={},
        help='other Ray resources that an engine needs, such as {"engine": 1}',
    )
    add(
        "--up-after",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="how long the demand must be higher before engines start",
    )
    add(
        "--down-after",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long the demand must be lower before engines stop",
    )
    add("--stop", action="store_true", help="stop the pool's engines; each drains first")
    return parser
