"""The scenario: engines are added and removed with the load, and no request is lost."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

import demo
from gateway.database import redis_command, redis_socket, start_embedded
from gateway.start import SECRETS
from tests.labs.kubernetes.api import Api, Object
from tests.labs.kubernetes.control_plane import Keys, control_plane
from tests.labs.kubernetes.kubelet import Image, Kubelet, Pod
from tests.labs.kubernetes.load import Load
from tests.labs.kubernetes.metrics_provider import provider
from tests.labs.kubernetes.network import Services, bring_up, outside

ROOT = Path(__file__).resolve().parents[3]
OVERLAY = Path(__file__).parent / "overlay"
NAMESPACE = "lorikeet"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
SCALERS = f"/apis/autoscaling/v2beta2/namespaces/{NAMESPACE}/horizontalpodautoscalers"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
COST = "controller.kubernetes.io/pod-deletion-cost"
WAIT_S = 600.0
FEW, MANY = 2, 26


@dataclass
class Step:
    """A row of the result table."""

    name: str
    seconds: float
    engines: str
    answered: int
    failures: dict[str, int]


@dataclass
class Result:
    """The scenario's findings, for its caller."""

    steps: list[Step] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)


class World:
    """The cluster, and the load from outside of it."""

    def __init__(self, api: Api, kubelet: Kubelet, load: Load, manager: Manager) -> None:
        self.api, self.kubelet, self.load, self.manager = api, kubelet, load, manager
        self.result = Result()
        self.fewest = 0
        """Ready engines at the worst moment of a step."""

    @property
    def engines(self) -> list[Pod]:
        """The engines that are ready for requests."""
        return [pod for pod in self.kubelet.of("engine") if pod.ready]

    async def until(self, done: Callable[[], bool | Awaitable[bool]]) -> None:
        """Wait until `done` is true; also updates `fewest`.

        Raises:
            TimeoutError: it was not within WAIT_S.
        """
        async with asyncio.timeout(WAIT_S):
            while True:
                found = done()
                if found if isinstance(found, bool) else await found:
                    return
                self.fewest = min(self.fewest, len(self.engines))
                await asyncio.sleep(0.2)

    @asynccontextmanager
    async def step(self, name: str) -> AsyncIterator[None]:
        """Record what happens inside the context as a row of the table."""
        began, before = time.monotonic(), len(self.engines)
        answered, failures = self.load.answered, self.load.failures.copy()
        self.fewest = before
        try:
            yield
        finally:
            step = Step(
                name,
                round(time.monotonic() - began, 1),
                f"{before} -> {len(self.engines)}, at least {min(self.fewest, len(self.engines))}",
                self.load.answered - answered,
                dict(self.load.failures - failures),
            )
            self.result.steps.append(step)
            print(json.dumps(asdict(step)), flush=True)

    async def rolled(self, name: str) -> bool:
        """Whether all pods of the Deployment have its newest template, and no old one is left."""
        found = await self.api.get(f"{APPS}/{name}")
        status, replicas = found["status"], found["spec"]["replicas"]
        return bool(
            status.get("observedGeneration") == found["metadata"]["generation"]
            and status.get("updatedReplicas") == status.get("availableReplicas") == replicas
            and len(self.kubelet.of(name)) == replicas
        )

    async def roll(self, name: str, version: str) -> None:
        """Deploy a new release; returns when the last old pod is gone."""
        image = [{"name": name, "image": f"lorikeet:{version}"}]
        body = {"spec": {"template": {"spec": {"containers": image}}}}
        assert await self.api.patch(f"{APPS}/{name}", body, "strategic-merge")
        await asyncio.sleep(1)
        await self.until(lambda: self.rolled(name))


async def play(world: World) -> None:
    """Run the scenario's steps."""
    load, engines = world.load, lambda: len(world.engines)
    async with world.step("all is ready"):
        await world.until(lambda: engines() == 1)
        for name in ("gateway", "console", "worker", "scaledown"):
            await world.until(lambda name=name: world.rolled(name))  # type: ignore[misc]
    async with world.step(f"load rises from {FEW} to {MANY} requests at a time"):
        load.want(FEW)
        await asyncio.sleep(5)
        load.want(MANY)
        await world.until(lambda: engines() == 4)
    async with world.step("costs are set"):
        await world.until(lambda: _costs_differ(world.api))
    async with world.step("an engine's process is killed; it starts again in its pod"):
        victim = max(world.engines, key=lambda pod: pod.name)
        assert victim.pid
        os.kill(victim.pid, 9)
        await world.until(lambda: victim.restarts == 1 and victim.ready)
    async with world.step("an engine's pod is lost with all it had; another one replaces it"):
        lost = min(world.engines, key=lambda pod: pod.name)
        lost.kill()
        await world.until(lambda: engines() == 4 and lost not in world.engines)
    async with world.step("rolling upgrade of the engines"):
        await world.roll("engine", "2")
    async with world.step("rolling upgrade of the gateways"):
        await world.roll("gateway", "2")
    async with world.step(f"load falls to {FEW}"):
        load.want(FEW)
        await world.until(lambda: engines() == 1 == len(world.kubelet.of("engine")))
    async with world.step("nothing is asked; the last engine stops"):
        await load.stop()
        spec = {"spec": {"minReplicas": 0}}
        assert await world.api.patch(f"{SCALERS}/engine", spec)
        await world.until(lambda: not world.kubelet.of("engine"))
    async with world.step("one request comes, and an engine for it"):
        await world.until(lambda: _is_answered(load))
    async with world.step("a fine-tuning job is trained by a Job"):
        path = await _started_tuning(load)
        await world.until(lambda: _tuning_is(load, path, "queued"))
        await world.api.create(JOBS, world.manager.trainer("by-hand"))
        await world.until(lambda: _has_succeeded(world.api, "by-hand"))
        # A synthetic engine has other layers than the model, so the adapter is refused.


async def _costs_differ(api: Api) -> bool:
    pods = await api.items(
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        labelSelector="app.kubernetes.io/component=engine",
    )
    return all(int(pod["metadata"].get("annotations", {}).get(COST, 0)) > 0 for pod in pods)


async def _has_succeeded(api: Api, job: str) -> bool:
    return bool((await api.get(f"{JOBS}/{job}"))["status"].get("succeeded"))


async def _started_tuning(load: Load) -> str:
    """Start a fine-tuning job as a tenant does; returns its path."""
    said = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I!"}]
    rows = 4 * f"{json.dumps({'messages': said})}\n"
    async with load.client() as client:
        files = {"file": ("rows.jsonl", rows)}
        file = await client.post("/v1/files", files=files, data={"purpose": "fine-tune"})
        asked = {"model": load.model, "training_file": file.raise_for_status().json()["id"]}
        made = await client.post("/v1/fine_tuning/jobs", json=asked)
    return f"/v1/fine_tuning/jobs/{made.raise_for_status().json()['id']}"


async def _tuning_is(load: Load, path: str, status: str) -> bool:
    async with load.client() as client:
        found = (await client.get(path)).raise_for_status().json()
    assert found["status"] != "failed", found["error"]
    return bool(found["status"] == status)


async def _is_answered(load: Load) -> bool:
    failure = await load.ask()
    if failure:
        load.failures[failure] += 1
        await asyncio.sleep(1)
    return not failure


# --- setup ---------------------------------------------------------------------------------------


async def run(binaries: Path, folder: Path) -> Result:
    """Set up the cluster and run the scenario, in an empty network and mount namespace."""
    bring_up()
    keys = Keys.make(folder / "keys")
    environment = _settings(folder)
    redis = await asyncio.create_subprocess_exec(*redis_command(redis_socket(folder)))
    await outside(
        {
            5432: f"{environment['DATABASE_SOCKET']}/.s.PGSQL.5432",
            6379: str(redis_socket(folder)),
        }
    )
    try:
        async with control_plane(binaries, keys, folder) as api:
            return await _in_the_cluster(api, keys, folder, environment)
    finally:
        redis.kill()
        await redis.wait()


def _settings(folder: Path) -> dict[str, str]:
    """The settings of `.env`."""
    url = start_embedded(folder / "postgres")
    (socket,) = parse_qs(urlsplit(url).query)["host"]
    made = {name: secrets.token_urlsafe(32) for name in (*SECRETS, "LORIKEET_METRICS_TOKEN")}
    return made | {
        "LORIKEET_DATABASE_URL": "postgresql://postgres@postgres:5432/postgres",
        "LORIKEET_REDIS_URL": "redis://redis:6379/0",
        "LORIKEET_VAR": str(folder / "operator"),
        "DATABASE_SOCKET": socket,
    }


async def _in_the_cluster(
    api: Api, keys: Keys, folder: Path, environment: dict[str, str]
) -> Result:
    services = Services(api)
    image = Image(
        [sys.executable, str(ROOT / "manage.py")],
        {"PATH": os.environ["PATH"], "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    kubelet = Kubelet(api, services, image, folder, {})
    await kubelet.register()
    tasks = [asyncio.create_task(services.run()), asyncio.create_task(kubelet.run())]
    gateways, token = (
        lambda: f"http://{services.names['gateways']}:8000",
        environment["LORIKEET_METRICS_TOKEN"],
    )
    async with provider(keys, gateways, token):
        return await _played(api, services, kubelet, tasks, environment)


async def _played(
    api: Api,
    services: Services,
    kubelet: Kubelet,
    tasks: list[asyncio.Task[None]],
    environment: dict[str, str],
) -> Result:
    try:
        manager = Manager(environment)
        for one in manager.manifests():
            if one["kind"] != "CronJob":  # whose version this control plane does not know
                await api.apply(one)
        await manager.let_engines_in(api, kubelet)
        key = manager.tenants_key()
        address = services.names["gateways"]
        world = World(api, kubelet, Load(f"http://{address}:8000", key, demo.MODEL_NAME), manager)
        playing = asyncio.create_task(play(world))
        await asyncio.wait((playing, *tasks), return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, playing):
            if task.done():
                task.result()
        world.result.facts = await manager.accounts(world.load)
        pods = [*kubelet.past, *kubelet.pods.values()]
        world.result.facts |= {
            "cut off at the end of their grace": [pod.name for pod in pods if pod.cut_off],
            "ended by a liveness probe": [pod.name for pod in pods if pod.found_dead],
        }
        return world.result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Manager:
    """An operator's manual steps, with `manage.py` and `kubectl kustomize`."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment

    def _manage(self, *arguments: str) -> str:
        socket = self._environment["DATABASE_SOCKET"]
        here = {
            "LORIKEET_DATABASE_URL": f"postgresql://postgres@/postgres?host={socket}",
            "LORIKEET_REDIS_URL": "",
        }
        return self._run(["manage.py", *arguments], here)

    def _run(self, command: list[str], here: dict[str, str]) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
            | self._environment
            | here,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{command} failed: {done.stderr[-2000:]}")
        return done.stdout

    def manifests(self) -> list[Object]:
        """The secrets and all of Kustomize's output, namespaces first."""
        built = subprocess.run(
            ["kubectl", "kustomize", str(OVERLAY), "--load-restrictor", "LoadRestrictionsNone"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        built = built.replace("$(BASE)", str(demo.BASE)).replace("$(MODEL_NAME)", demo.MODEL_NAME)
        found = [one for one in yaml.safe_load_all(built) if one]
        found += json.loads(self._run(["manage.py", "kubernetes_secrets"], {}))["items"]
        return sorted(
            found, key=lambda one: ORDER.index(one["kind"]) if one["kind"] in ORDER else 9
        )

    def trainer(self, name: str) -> Object:
        """What `kubectl create job --from=cronjob/trainer` makes of the manifest."""
        (made,) = (one for one in self.manifests() if one["kind"] == "CronJob")
        spec = made["spec"]["jobTemplate"]["spec"]
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}

    async def let_engines_in(self, api: Api, kubelet: Kubelet) -> None:
        """Once the migration is complete, create a credential for the engines of the pool."""
        path = f"{JOBS}/migrate"
        async with asyncio.timeout(WAIT_S):
            while not (await api.get(path))["status"].get("succeeded"):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        made = self._manage("engine_credential", "make", "pool", "--pool", demo.MODEL_NAME)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "engine", "namespace": NAMESPACE},
            "stringData": {"LORIKEET_ENGINE_CREDENTIAL": made.strip()},
        }
        await api.apply(secret)

    def tenants_key(self) -> str:
        """A tenant's key for `/v1`."""
        return self._manage("shell", "-c", MAKE_A_TENANT).strip().splitlines()[-1]

    async def accounts(self, load: Load) -> dict[str, object]:
        """The usage in the ledger and as reported to clients, once the ledger has all requests."""
        told = {"requests": load.answered, **load.tokens}
        async with asyncio.timeout(WAIT_S):
            while True:
                billed = json.loads(self._manage("shell", "-c", READ_THE_LEDGER).splitlines()[-1])
                if billed["answered"]["requests"] >= told["requests"]:
                    return {"told to clients": told, **billed}
                await asyncio.sleep(1)


ORDER = ["Namespace", "PersistentVolume", "ServiceAccount", "ConfigMap", "Secret", "Service"]
MAKE_A_TENANT = """
from tenants.models import ApiKey, Tenant
tenant = Tenant.objects.create(slug="acme", name="Acme")
print(ApiKey.objects.issue(tenant, name="load", scopes=["inference", "adapters:write"])[1])
"""
READ_THE_LEDGER = """
import json
from datetime import UTC, datetime
from django.db.models import Count, Sum
from tenants.models import UsageEvent

def sums(events):
    return events.aggregate(
        requests=Count("id"),
        prompt_tokens=Sum("prompt_tokens", default=0),
        completion_tokens=Sum("completion_tokens", default=0),
    )

requests = UsageEvent.objects.exclude(pk__startswith="ftjob-")
answered = requests.filter(finish_reason__in=["stop", "length"])
others = requests.exclude(finish_reason__in=["stop", "length"])
reasons = dict(others.values_list("finish_reason").annotate(Count("id")))
print(json.dumps({"answered": sums(answered), "billed of others": sums(others), "ends": reasons}))
"""
