"""`python -m tests.labs.ray.scenario FOLDER`: engines and a trainer on a real Ray cluster whose
nodes are added and removed, in Linux namespaces of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import ray

import demo
from tests.labs.kubernetes.load import Load
from tests.stack.asking import until
from tests.stack.running import ROOT, Stack, settings_free, up
from tests.tuning.rows import NUMBERS, ROWS, jsonl

ADDRESS = "127.0.0.1:6379"
"""Ray's provider of nodes that are processes supports no other port."""
TOKEN = "metrics" * 5
WAIT_S = 240.0
PYTHONPATH = f"{ROOT}:{ROOT / 'platform'}:{os.environ.get('PYTHONPATH', '')}"
LISTS = (
    "initialization_commands", "setup_commands", "head_setup_commands", "cluster_synced_files",
    "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands",
    "rsync_exclude", "rsync_filter",
)  # fmt: skip
NODES: dict[str, Any] = {
    "cluster_name": "tests",
    "max_workers": 4,
    "provider": {
        "type": "fake_multinode",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "machine": {
            "resources": {"CPU": 1, "engine": 1, "object_store_memory": 80 << 20},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 3,
        },
    },
    "head_node_type": "ray.head.default",
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 0.1,
    "file_mounts_sync_continuously": False,
    "auth": {},
    "docker": {},
    "file_mounts": {},
    **{name: [] for name in LISTS},
}


@dataclass
class Step:
    """A row of the result table."""

    name: str
    seconds: float
    engines: int
    nodes: int
    answered: int
    failures: dict[str, int]


@contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """Run a head without room for engines, to which Ray adds nodes. Its folder has a short name,
    because it has sockets, whose paths are limited to 107 bytes."""
    config = folder / "nodes.json"
    config.write_text(json.dumps(NODES))
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=1",
        "--node-ip-address=127.0.0.1", "--port=6379", "--include-dashboard=false",
        "--object-store-memory=100000000", "--disable-usage-stats",
        f"--temp-dir={tempfile.mkdtemp(prefix='ray-')}", f"--autoscaling-config={config}",
    ]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": PYTHONPATH,
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    with (folder / "ray.log").open("wb") as out:
        head = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        _connect(head)
        yield
    finally:
        ray.shutdown()
        head.terminate()
        head.wait(60)


def _connect(head: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            ray.init(ADDRESS, log_to_driver=False)
            return
        except ConnectionError:
            assert head.poll() is None and time.monotonic() < end, "Ray does not start"
            time.sleep(1)


class World:
    """A Lorikeet without engines of its own, and Ray."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        made = stack.manage("engine_credential", "make", "ray", "--pool", demo.MODEL_NAME)
        self._credential = made.stdout.strip()
        self.load = Load(stack.url, stack.key(demo.TENANTS[0].slug), demo.MODEL_NAME)
        self.steps: list[Step] = []

    def deploy(self, drain_s: int) -> None:
        """Run `manage.py engines` as an operator does."""
        command = [
            sys.executable, str(ROOT / "manage.py"), "engines", "--ray", ADDRESS, "--max", "3",
            "--per-engine", "8", "--cpus", "0", "--resources", '{"engine": 1}',
            "--up-after", "1", "--down-after", "5", "--",
            "--engine", "synthetic", "--tokens-per-second", "5", "--model", str(demo.BASE),
            "--served-name", demo.MODEL_NAME, "--gateway", ",".join(self._stack.urls),
            "--journals", str(self._folder / "journals"),
            "--cache-dir", str(self._folder / "cache"), "--drain", str(drain_s),
        ]  # fmt: skip
        secrets = {"LORIKEET_ENGINE_CREDENTIAL": self._credential, "LORIKEET_METRICS_TOKEN": TOKEN}
        environment = os.environ | secrets | {"PYTHONPATH": PYTHONPATH}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    def tune(self) -> str:
        """Create a fine-tuning job; returns its path once a trainer can take it."""
        with self._stack.client(self.load.key) as client:
            upload: dict[str, Any] = {
                "files": {"file": ("rows.jsonl", jsonl(ROWS))},
                "data": {"purpose": "fine-tune"},
            }
            file = client.post("/v1/files", **upload).raise_for_status().json()["id"]
            asked = {"model": demo.MODEL_NAME, "training_file": file, "hyperparameters": NUMBERS}
            made = client.post("/v1/fine_tuning/jobs", json=asked).raise_for_status().json()
            path = f"/v1/fine_tuning/jobs/{made['id']}"
            until(lambda: client.get(path).json()["status"] == "queued", WAIT_S)
        return path

    def train(self) -> None:
        """Run `manage.py trainer` as an operator's timer does."""
        options = ["--ray", ADDRESS, "--cpus", "0", "--resources", '{"engine": 1}']
        settings = {
            "LORIKEET_VAR": str(self._stack.var),
            "LORIKEET_DATABASE_URL": self._stack.database_url,
            "LORIKEET_BASE_MODELS": f"{demo.MODEL_NAME}={demo.BASE}",
        }
        environment = settings_free() | settings | {"PYTHONPATH": PYTHONPATH}
        command = [sys.executable, str(ROOT / "manage.py"), "trainer", *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]

    def tuned(self, path: str) -> bool:
        """Whether the job has succeeded."""
        with self._stack.client(self.load.key) as client:
            job = client.get(path).json()
        assert job["status"] in ("running", "succeeded"), job
        return bool(job["status"] == "succeeded")

    async def engines(self) -> list[str]:
        """The ids of engines that accept requests."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(trust_env=False, verify=False, headers=headers) as client:
            answer = await client.get(f"{self._stack.url}/demand")
        told = answer.json().get("engines", []) if answer.is_success else []
        return [one["id"] for one in told if not one["draining"]]

    def nodes(self) -> int:
        """The number of nodes, without the head."""
        return sum(1 for node in ray.nodes() if node["Alive"]) - 1

    def processes(self) -> list[psutil.Process]:
        """The engines' processes."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if "engine" in (process.info["cmdline"] or [])[1:4]
        ]

    async def step(self, name: str, done: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `done`, and record the step's figures."""
        began, answered = time.monotonic(), self.load.answered
        failures = self.load.failures.copy()
        async with asyncio.timeout(WAIT_S):
            while not await done():  # noqa: ASYNC110
                await asyncio.sleep(0.3)
        step = Step(
            name,
            round(time.monotonic() - began, 1),
            len(await self.engines()),
            self.nodes(),
            self.load.answered - answered,
            dict(self.load.failures - failures),
        )
        self.steps.append(step)
        print(json.dumps(asdict(step)), flush=True)


async def play(world: World) -> None:
    """Run the scenario."""

    def engines(count: int) -> Callable[[], Awaitable[bool]]:
        async def found() -> bool:
            return len(await world.engines()) == count == len(world.processes())

        return found

    async def empty() -> bool:
        return not world.processes() and world.nodes() == 0

    await asyncio.to_thread(world.deploy, 60)
    await world.step("deployed; the pool's first engine comes", engines(1))
    world.load.want(12)
    await world.step("load rises to 12 requests at a time", engines(2))
    before = await world.engines()
    world.processes()[0].kill()

    async def replaced() -> bool:
        return await engines(2)() and set(await world.engines()) != set(before)

    await world.step("an engine is killed; another one replaces it", replaced)
    old = set(await world.engines())
    upgrading = asyncio.create_task(asyncio.to_thread(world.deploy, 61))

    async def upgraded() -> bool:
        return upgrading.done() and await engines(2)() and not old & set(await world.engines())

    await world.step("rolling upgrade of the engines", upgraded)
    world.load.want(2)
    await world.step("load falls to 2", engines(1))
    await world.load.stop()
    await world.step("nothing is asked", empty)
    world.load.want(1)

    async def answered() -> bool:
        return world.load.answered > before_it

    before_it = world.load.answered
    await world.step("one client comes back, and an engine and a node for it", answered)
    job = await asyncio.to_thread(world.tune)
    await asyncio.to_thread(world.train)

    async def tuned() -> bool:
        return await asyncio.to_thread(world.tuned, job)

    await world.step("a fine-tuning job was trained by a task; an engine checks it", tuned)
    await world.load.stop()
    await world.step("nothing is asked or trained", empty)


def main() -> None:
    folder = Path(sys.argv[1])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with (
        up(
            folder / "var",
            LORIKEET_ENGINES="0",
            LORIKEET_GATEWAYS="2",
            LORIKEET_METRICS_TOKEN=TOKEN,
        ) as stack,
        cluster(folder),
    ):
        world = World(stack, folder)
        asyncio.run(play(world))
    (folder / "result.json").write_text(json.dumps([asdict(step) for step in world.steps]))


if __name__ == "__main__":
    main()
