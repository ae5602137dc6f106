"""A kubelet whose containers are processes: each pod has its own network, its own mounts over a
read-only copy of this machine's files, and the account that its manifest names.

Everything in a manifest is either implemented or refused, never ignored: volumes, environment,
probes, lifecycle, grace, restarts. An image is the command that `IMAGE` names.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import structlog

from tests.labs.kubernetes.api import Api, Object
from tests.labs.kubernetes.network import Namespace, Services

log = structlog.get_logger(__name__)
T = TypeVar("T")

NODE = "node"
POLL_S = 0.2
RESTART_S = 10.0
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
ROOM = {"cpu": "100", "memory": "1000Gi", "pods": "100"}
IN_A_ROOT_OF_ITS_OWN = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$PLACE"; mkdir "$PLACE/upper" "$PLACE/work" "$PLACE/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$PLACE/upper,workdir=$PLACE/work" "$PLACE/root"
mount --rbind /proc "$PLACE/root/proc"; mount --rbind /dev "$PLACE/root/dev"
while IFS=' ' read -r from to; do
  to=$(chroot "$PLACE/root" realpath -m "$to")
  if [ -d "$from" ]; then mkdir -p "$PLACE/root$to"
  else mkdir -p "$(dirname "$PLACE/root$to")"; [ -e "$PLACE/root$to" ] || touch "$PLACE/root$to"; fi
  mount --bind "$from" "$PLACE/root$to"
done <<< "$BINDS"
while read -r folder; do chmod o+x "$PLACE/root$folder"; done <<< "$OPEN"
if [ "$READ_ONLY" = 1 ]; then mount -o remount,ro "$PLACE/root"; fi
cd /
exec chroot "$PLACE/root" setpriv --reuid="$USER_ID" --regid="$GROUP_ID" --clear-groups \
  --no-new-privs --inh-caps=-all --bounding-set=-all env -i "$@"
"""


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass
class Image:
    """An image's contents: its entry point, its folder and its environment."""

    command: list[str]
    environment: Mapping[str, str]

    @property
    def folders(self) -> set[str]:
        """All parent folders of its files. In a pod every account may enter them, as in images."""
        files = [Path(part) for one in self.command for part in (one, os.path.realpath(one))]
        return {str(folder) for file in files for folder in file.parents if str(folder) != "/"}


@dataclass
class Kubelet:
    """All pods of one node."""

    api: Api
    services: Services
    image: Image
    folder: Path
    hosts: Mapping[str, str]
    """Host names besides those of services, with their addresses."""
    pods: dict[str, Pod] = field(default_factory=dict)
    """Current pods by uid."""
    past: list[Pod] = field(default_factory=list)

    async def register(self) -> None:
        """Register a node on which pods can be placed."""
        labels = {"kubernetes.io/hostname": NODE}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}}
        await self.api.create("/api/v1/nodes", node)
        ready = {"type": "Ready", "status": "True", "reason": "x", "message": "x"}
        ready |= {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
        status = {"capacity": ROOM, "allocatable": ROOM, "conditions": [ready]}
        await self.api.patch(f"/api/v1/nodes/{NODE}/status", {"status": status})
        await self.api.patch(f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})

    async def run(self) -> None:
        """Start and stop pods as Kubernetes wants, until cancelled."""
        try:
            while True:
                found = await self.api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={NODE}")
                await self._follow({pod["metadata"]["uid"]: pod for pod in found})
                await asyncio.sleep(POLL_S)
        finally:
            for pod in self.pods.values():
                pod.kill()
            ends = [pod.task for pod in self.pods.values() if pod.task is not None]
            await asyncio.gather(*ends, return_exceptions=True)

    async def _follow(self, wanted: Mapping[str, Object]) -> None:
        for uid, manifest in wanted.items():
            meta, pod = manifest["metadata"], self.pods.get(uid)
            if pod is not None:
                if "deletionTimestamp" in meta:
                    pod.stop(meta.get("deletionGracePeriodSeconds", 30))
            elif "deletionTimestamp" in meta:
                await self.api.delete(path_of(manifest), 0)
            elif manifest["status"].get("phase") == "Pending":
                pod = self.pods[uid] = Pod(self, manifest)
                pod.task = asyncio.create_task(pod.live())
        for uid in self.pods.keys() - wanted.keys():  # deleted by force
            self.pods[uid].kill()
        for uid, pod in list(self.pods.items()):
            if pod.task is not None and pod.task.done():
                pod.task.result()
                if uid not in wanted:
                    self.past.append(self.pods.pop(uid))

    def of(self, component: str) -> list[Pod]:
        """The running pods of a Deployment."""
        return [one for one in self.pods.values() if one.component == component and one.pid]


def path_of(pod: Object) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


class Pod:
    """One pod with its one container."""

    def __init__(self, kubelet: Kubelet, manifest: Object) -> None:
        self.manifest, self.meta = manifest, manifest["metadata"]
        self.name: str = self.meta["name"]
        self.component: str = self.meta["labels"].get("app.kubernetes.io/component", "")
        (self._container,) = manifest["spec"]["containers"]
        self._kubelet, self._api = kubelet, kubelet.api
        self._folder: Path = kubelet.folder / "pods" / self.meta["uid"]
        self._network = Namespace()
        self._process: asyncio.subprocess.Process | None = None
        self._grace_s: float | None = None
        self._stopping = asyncio.Event()
        self._killed = False
        self.ready = False
        self.found_dead = False
        """Whether a failed liveness probe ended it."""
        self.restarts = 0
        self.stopping_at: float | None = None
        self.stopped_at: float | None = None
        self.exits: list[int] = []
        self.cut_off = False
        """Whether it was killed because it did not end within its grace period."""
        self.task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self._network.address

    @property
    def pid(self) -> int | None:
        """The id of its process while that runs, else None."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def stop(self, grace_s: float) -> None:
        """Stop as Kubernetes does: preStop hook, SIGTERM, and SIGKILL after the grace period."""
        if self._grace_s is None:
            self._grace_s, self.stopping_at = grace_s, time.monotonic()
            self._stopping.set()
        if not grace_s:
            self.kill()

    def kill(self) -> None:
        """Kill it at once, as if its node were gone."""
        self._killed = True
        self._stopping.set()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    async def live(self) -> None:
        """Run the pod from its start to its end."""
        try:
            await asyncio.to_thread(self._network.connect)
            self._folder.mkdir(parents=True)
            binds = await self._given(self._volumes)
            policy = self.manifest["spec"].get("restartPolicy", "Always")
            while not self._stopping.is_set():
                status = await self._run(binds)
                self.exits.append(status)
                if policy != "Always" and (status == 0 or policy == "Never"):
                    return await self._tell("Succeeded" if status == 0 else "Failed")
                if not self._stopping.is_set():
                    self.restarts += 1
                    await asyncio.sleep(RESTART_S)
        finally:
            self.stopped_at = time.monotonic()
            self._network.close()
            if self._stopping.is_set():
                shutil.rmtree(self._folder, ignore_errors=True)
                await self._api.delete(path_of(self.manifest), 0)

    # --- the container ---------------------------------------------------------------------------

    async def _run(self, binds: list[tuple[str, str]]) -> int:
        """Run the container once; returns its exit status."""
        environment = await self._given(self._environment)
        place = self._folder / "root"
        place.mkdir(exist_ok=True)
        security = self.manifest["spec"].get("securityContext", {})
        own = self._container.get("securityContext", {})
        outer = {
            "PATH": os.environ["PATH"],
            "PLACE": str(place),
            "BINDS": "\n".join(f"{source} {target}" for source, target in binds),
            "OPEN": "\n".join(self._kubelet.image.folders),
            "READ_ONLY": "1" if own.get("readOnlyRootFilesystem") else "0",
            "USER_ID": str(security["runAsUser"]),
            "GROUP_ID": str(security["runAsGroup"]),
        }
        log_file = self._kubelet.folder / f"{self.name}.log"
        with log_file.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                "nsenter", f"--net={self._network.path}", "unshare", "--mount",
                "bash", "-c", IN_A_ROOT_OF_ITS_OWN, "bash",
                *(f"{name}={value}" for name, value in environment.items()),
                *self._kubelet.image.command,
                *(_expanded(one, environment) for one in self._container["args"]),
                env=outer, stdout=out, stderr=out,
            )  # fmt: skip
        probing = asyncio.create_task(self._probe())
        stopping = asyncio.create_task(self._stop_in_order())
        try:
            return await self._process.wait()
        finally:
            self.ready = False
            for task in (probing, stopping):
                task.cancel()
            await asyncio.gather(probing, stopping, return_exceptions=True)
            if not self._killed:
                await self._tell("Running")

    async def _stop_in_order(self) -> None:
        await self._stopping.wait()
        if self._killed:
            return self.kill()
        grace_s = self._grace_s or 0.0
        hook = self._container.get("lifecycle", {}).get("preStop")
        began = time.monotonic()
        if hook is not None:
            await self._execute(hook["exec"]["command"])
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)
        await asyncio.sleep(max(0.0, grace_s - (time.monotonic() - began)))
        self.cut_off = True
        self.kill()

    async def _tell(self, phase: str) -> None:
        """Report the pod's status; Kubernetes sends requests only to ready pods."""
        state: Object = {"running": {"startedAt": now()}}
        if phase != "Running":
            code = 0 if phase == "Succeeded" else 1
            state = {"terminated": {"exitCode": code, "finishedAt": now(), "startedAt": now()}}
        conditions = [
            {"type": kind, "status": str(self.ready or kind == "PodScheduled")}
            for kind in ("Ready", "ContainersReady", "Initialized", "PodScheduled")
        ]
        container = {
            "name": self._container["name"],
            "ready": self.ready,
            "restartCount": self.restarts,
            "image": self._container["image"],
            "imageID": "none",
            "state": state,
        }
        status = {
            "phase": phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "startTime": now(),
            "conditions": conditions,
            "containerStatuses": [container],
        }
        await self._api.patch(f"{path_of(self.manifest)}/status", {"status": status})

    # --- probes ----------------------------------------------------------------------------------

    async def _probe(self) -> None:
        """Probe startup first, then readiness and liveness concurrently, as Kubernetes does."""
        await self._tell("Running")
        if startup := self._container.get("startupProbe"):
            await self._until(startup, succeeds=True)
        readiness, liveness = (
            self._container.get(f"{one}Probe") for one in ("readiness", "liveness")
        )
        async with asyncio.TaskGroup() as together:
            together.create_task(self._follow_readiness(readiness))
            if liveness:
                together.create_task(self._follow_liveness(liveness))

    async def _follow_readiness(self, probe: Object | None) -> None:
        ready = True
        while True:
            if probe is not None:
                await self._until(probe, succeeds=ready)
            self.ready = ready and not self._stopping.is_set()
            await self._tell("Running")
            if probe is None:
                return
            ready = not ready

    async def _follow_liveness(self, probe: Object) -> None:
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        await self._until(probe, succeeds=False)
        log.warning("not_alive", pod=self.name)
        self.found_dead = True
        if self.pid and not self._stopping.is_set():
            os.kill(self.pid, signal.SIGKILL)

    async def _until(self, probe: Object, *, succeeds: bool) -> None:
        """Probe until it succeeded or failed as often in a row as its threshold."""
        wanted = probe.get("successThreshold", 1) if succeeds else probe.get("failureThreshold", 3)
        in_a_row = 0
        while in_a_row < wanted:
            in_a_row = in_a_row + 1 if await self._succeeds(probe) is succeeds else 0
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _succeeds(self, probe: Object) -> bool:
        if "exec" in probe:
            return await self._execute(probe["exec"]["command"]) == 0
        asked = probe["httpGet"]
        url = f"http://{self.address}:{self._port(asked['port'])}{asked['path']}"
        try:
            async with httpx.AsyncClient(trust_env=False, verify=False) as client:
                answer = await client.get(url, timeout=probe.get("timeoutSeconds", 1) + 1)
        except httpx.HTTPError:
            return False
        return 200 <= answer.status_code < 400

    def _port(self, port: str | int) -> int:
        named = {one["name"]: one["containerPort"] for one in self._container["ports"]}
        return int(named.get(port, port))

    async def _execute(self, command: list[str]) -> int:
        """Run a command in the container."""
        if not self.pid:
            return 1
        done = await asyncio.create_subprocess_exec(
            "nsenter", f"--target={self.pid}", "--net", "--mount", "--root", *command,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        return await done.wait()

    # --- environment and volumes -----------------------------------------------------------------

    async def _given(self, find: Callable[[], Awaitable[T]]) -> T:
        """The result of `find`, retried until all objects that the manifest names exist."""
        while True:
            try:
                return await find()
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.NOT_FOUND or self._stopping.is_set():
                    raise
            await asyncio.sleep(RESTART_S)

    async def _environment(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in self._container.get("envFrom", []):
            if "configMapRef" in source:
                found |= (await self._named("configmaps", source["configMapRef"]["name"]))["data"]
            else:
                found |= await self._secret(source["secretRef"]["name"])
        for one in self._container.get("env", []):
            found[one["name"]] = _expanded(self._value(one), found)
        host = self._kubelet.services.names["kubernetes"]
        kubernetes = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
        return {**self._kubelet.image.environment, **kubernetes, **found}

    def _value(self, variable: Object) -> str:
        if "value" in variable:
            return str(variable["value"])
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        return {"status.podIP": self.address, "metadata.name": self.name}[path]

    async def _named(self, kind: str, name: str) -> Object:
        return await self._api.get(f"/api/v1/namespaces/{self.meta['namespace']}/{kind}/{name}")

    async def _secret(self, name: str) -> dict[str, str]:
        return _decoded((await self._named("secrets", name))["data"])

    async def _volumes(self) -> list[tuple[str, str]]:
        """The mounts, as pairs of source and target paths."""
        binds = []
        volumes = {one["name"]: one for one in self.manifest["spec"].get("volumes", [])}
        for mount in self._container.get("volumeMounts", []):
            source = await self._source(volumes[mount["name"]])
            if sub := mount.get("subPath"):
                source = self._for_its_account(source / sub)
            binds.append((str(source), mount["mountPath"]))
        hosts = {"localhost": "127.0.0.1", **self._kubelet.hosts, **self._kubelet.services.names}
        lines = "".join(f"{address} {name}\n" for name, address in hosts.items())
        binds.append((str(self._written("hosts", lines)), "/etc/hosts"))
        if self.manifest["spec"].get("automountServiceAccountToken") is not False:
            binds.append((str(await self._account()), ACCOUNT))
        return binds

    async def _source(self, volume: Object) -> Path:
        place = self._folder / "volumes" / volume["name"]
        if "emptyDir" in volume:
            return self._for_its_account(place)
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            return self._for_its_account(self._kubelet.folder / "claims" / claim)
        if "secret" in volume:
            return _filled(place, await self._secret(volume["secret"]["secretName"]))
        return _filled(
            place, (await self._named("configmaps", volume["configMap"]["name"]))["data"]
        )

    def _for_its_account(self, place: Path) -> Path:
        place.mkdir(parents=True, exist_ok=True)
        os.chown(place, 0, self.manifest["spec"]["securityContext"]["fsGroup"])
        place.chmod(0o2777)
        return place

    def _written(self, name: str, text: str) -> Path:
        file = self._folder / name
        file.write_text(text)
        return file

    async def _account(self) -> Path:
        """A volume with the token of its service account."""
        name = self.manifest["spec"]["serviceAccountName"]
        path = f"/api/v1/namespaces/{self.meta['namespace']}/serviceaccounts/{name}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        made = await self._api.create(path, asked)
        return _filled(
            self._folder / "account",
            {
                "token": made["status"]["token"],
                "namespace": self.meta["namespace"],
                "ca.crt": (self._kubelet.folder / "keys" / "ca.crt").read_text(),
            },
        )


def _filled(place: Path, files: Mapping[str, str]) -> Path:
    """The folder `place` with these files."""
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name).write_text(text)
    return place


def _decoded(data: Mapping[str, str]) -> dict[str, str]:
    return {name: base64.b64decode(value).decode() for name, value in data.items()}


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """`text` with each `$(NAME)` replaced as Kubernetes does."""

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1], found[0])

    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", value, text)
