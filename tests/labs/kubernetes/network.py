"""A network of pods and services inside one network namespace, in place of a CNI plugin, kube-proxy
and the cluster's DNS. Network policies are not enforced.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.labs.kubernetes.api import Api, Object

PODS, SERVICES = "10.244.0", "10.96.0"
HOST_IP = f"{PODS}.1"
POLL_S = 0.3
CHUNK = 1 << 16


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def bring_up() -> None:
    """Create the bridge that connects the pods, in an empty namespace."""
    ip("link", "set", "lo", "up")
    ip("link", "add", "pods", "type", "bridge")
    ip("addr", "add", f"{HOST_IP}/24", "dev", "pods")
    ip("link", "set", "pods", "up")


class Namespace:
    """A pod's network namespace with its own address, kept alive by an idle process."""

    _numbers = itertools.count(10)

    def __init__(self) -> None:
        self._number = next(self._numbers)
        self.address = f"{PODS}.{self._number}"
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self.path = f"/proc/{self._holder.pid}/ns/net"

    def connect(self) -> None:
        """Connect the namespace to the bridge with a veth pair."""
        own = Path("/proc/self/ns/net").readlink()
        while Path(self.path).readlink() == own:  # until `unshare` has created it
            time.sleep(0.01)
        outer, inside = f"pod{self._number}", ["nsenter", f"--net={self.path}"]
        pid = str(self._holder.pid)
        ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", pid)
        ip("link", "set", outer, "master", "pods", "up")
        for command in (
            ["ip", "addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
            ["ip", "link", "set", "lo", "up"],
            ["ip", "route", "add", "default", "via", HOST_IP],
        ):
            subprocess.run([*inside, *command], check=True, capture_output=True)

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()


class Services:
    """Forwards each connection to a service's address to a random one of its ready pods."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self._addresses: set[str] = set()
        self._endpoints: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
        """Addresses of ready pods by namespace, service and port name."""
        self.names: dict[str, str] = {}
        """Addresses of services by name, as DNS would resolve them."""

    async def run(self) -> None:
        """Follow Kubernetes' services and endpoints, until cancelled."""
        while True:
            for service in await self._api.items("/api/v1/services"):
                await self._serve(service)
            for found in await self._api.items("/api/v1/endpoints"):
                self._note(found)
            await asyncio.sleep(POLL_S)

    async def _serve(self, service: Object) -> None:
        meta, spec = service["metadata"], service["spec"]
        address = spec.get("clusterIP", "None")
        if address == "None":
            return
        if address not in self._addresses:
            self._addresses.add(address)
            ip("addr", "add", f"{address}/32", "dev", "lo")
        name, namespace = meta["name"], meta["namespace"]
        for alias in (name, f"{name}.{namespace}", f"{name}.{namespace}.svc"):
            self.names[alias] = address
        for port in spec["ports"]:
            if (address, port["port"]) not in self._servers:
                key = (namespace, name, port.get("name", ""))

                async def take(
                    reader: asyncio.StreamReader,
                    writer: asyncio.StreamWriter,
                    key: tuple[str, str, str] = key,
                ) -> None:
                    await relay(reader, writer, *self._one_of(key))

                server = await asyncio.start_server(take, address, port["port"])
                self._servers[address, port["port"]] = server

    def _one_of(self, key: tuple[str, str, str]) -> tuple[str, int]:
        ready = self._endpoints.get(key)
        return random.choice(ready) if ready else ("127.0.0.1", 1)  # nothing listens there

    def _note(self, found: Object) -> None:
        meta, ready = found["metadata"], dict[str, list[tuple[str, int]]]()
        for subset in found.get("subsets", []):
            for port in subset["ports"]:
                addresses = [(one["ip"], port["port"]) for one in subset.get("addresses", [])]
                ready.setdefault(port.get("name", ""), []).extend(addresses)
        known = [key for key in self._endpoints if key[:2] == (meta["namespace"], meta["name"])]
        for key in known:
            del self._endpoints[key]
        for name, addresses in ready.items():
            self._endpoints[meta["namespace"], meta["name"], name] = addresses


async def relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
) -> None:
    """Relay between a connection and a new one to this address; a path is a Unix socket's."""
    try:
        if host.startswith("/"):
            there = await asyncio.open_unix_connection(host)
        else:
            there = await asyncio.open_connection(host, port)
    except OSError:
        writer.transport.abort()
        return
    with suppress(OSError):
        await asyncio.gather(_pour(reader, there[1]), _pour(there[0], writer))
    for end in (writer, there[1]):
        end.transport.abort()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def outside(sockets: Mapping[int, str]) -> list[asyncio.Server]:
    """Servers outside of the cluster, at its host address: each port leads to a Unix socket."""

    async def serve(port: int, path: str) -> asyncio.Server:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await relay(reader, writer, path, 0)

        return await asyncio.start_server(take, HOST_IP, port)

    return [await serve(port, path) for port, path in sockets.items()]
