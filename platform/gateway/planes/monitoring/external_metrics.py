"""`external.metrics.k8s.io`: the metrics by which Kubernetes' autoscaler (HPA) scales engines.

Once an APIService names the gateways, Kubernetes' API server forwards requests for
`/apis/external.metrics.k8s.io` to them. It has authenticated and authorized (RBAC) their sender,
and presents the certificate of its aggregation layer. So this is a separate TLS listener that
accepts only that certificate: signed by the cluster's front-proxy CA, and with one of the expected
names, because that CA may sign others too. The original user (`X-Remote-User`) is ignored. A
gateway has no permissions in Kubernetes at all.

Other connections are bounded before they are authenticated: in total, per address, and in time. At
worst the autoscaler gets no figures, and then it changes nothing.

https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import h11
import structlog
from django.conf import settings

from inference.errors import Unavailable
from inference.gateway.fleet.demand import FIGURES, FleetDemand
from inference.process.environ import BadSetting
from inference.process.supervision import ended, supervised

log = structlog.get_logger(__name__)

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
METRICS = {f"lorikeet_{name}": name for name in FIGURES}
MAX_CONNECTIONS, MAX_PER_ADDRESS = 32, 8
"""An API server keeps one or two open."""
HANDSHAKE_S, IDLE_S = 5.0, 120.0
MAX_HEAD_BYTES = 16 << 10
"""Of a request's head; requests have no body."""
NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._-]")


class MetricRefused(Exception):
    """The request can't be answered; `status` is the HTTP status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


def label_of(pool: str) -> str:
    """The pool's name as a label value: at most 63 characters, of a restricted set."""
    return NOT_IN_LABELS.sub("-", pool).strip("-._")[:63]


def answer(target: str, demand: FleetDemand, now: float) -> Mapping[str, Any]:
    """The answer to a GET of this address.

    Raises:
        Refused: there is no such address or metric, or the figure is not known now.
    """
    url = urlsplit(target)
    path = [unquote(part) for part in url.path.split("/")[1:] if part]
    if path == ["apis", GROUP, VERSION]:
        return _resources()
    if path[:3] != ["apis", GROUP, VERSION] or path[3:4] != ["namespaces"] or len(path) != 6:
        raise MetricRefused(404, "NotFound", "there is no resource at this URL")
    metric = METRICS.get(path[5])
    if metric is None:
        raise MetricRefused(404, "NotFound", f"the available metrics are {', '.join(METRICS)}")
    wanted = _selected(parse_qs(url.query).get("labelSelector", [""])[0])
    try:
        pools = demand.figures(now)
    except Unavailable as error:
        raise MetricRefused(503, "ServiceUnavailable", str(error)) from None
    return _values(path[5], metric, wanted, {label_of(one): pools[one] for one in pools})


def _resources() -> Mapping[str, Any]:
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [
            {
                "name": name,
                "singularName": "",
                "namespaced": True,
                "kind": "ExternalMetricValueList",
                "verbs": ["get"],
            }
            for name in METRICS
        ],
    }


def _selected(selector: str) -> str | None:
    """The pool that the selector selects; None: all.

    Raises:
        Refused: it selects by something else.
    """
    if not selector:
        return None
    found = re.fullmatch(r"\s*pool\s*==?\s*([A-Za-z0-9._-]*)\s*", selector)
    if found is None:
        raise MetricRefused(400, "BadRequest", "the selector must be pool=NAME")
    return found[1]


def _values(
    name: str, metric: str, wanted: str | None, pools: Mapping[str, Mapping[str, float]]
) -> Mapping[str, Any]:
    """The metric of the wanted pool, or of all pools. Counts of an unknown pool are 0; the expected
    wait may be unknown."""
    chosen = pools if wanted is None else {wanted: pools.get(wanted, {})}
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = [
        {
            "metricName": name,
            "metricLabels": {"pool": pool},
            "timestamp": at,
            "value": f"{math.ceil(1000 * figures.get(metric, 0))}m",
        }
        for pool, figures in _known(chosen, metric)
    ]
    if not items and metric == "expected_wait_seconds":
        raise MetricRefused(503, "ServiceUnavailable", "the expected wait is currently unknown")
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": f"{GROUP}/{VERSION}",
        "metadata": {},
        "items": items,
    }


def _known(
    pools: Mapping[str, Mapping[str, float]], metric: str
) -> Collection[tuple[str, Mapping[str, float]]]:
    """The pools whose metric is known: counts always are, because a missing count is 0."""
    counted = metric != "expected_wait_seconds"
    return [(pool, figures) for pool, figures in pools.items() if counted or metric in figures]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS files: this listener's certificate and key, and the CA of the API servers' client
    certificates."""

    certificate: Path
    key: Path
    client_authority: Path

    def state(self) -> tuple[int, ...]:
        """Changes when the files change: Kubernetes replaces them while the process runs."""
        files = (self.certificate, self.key, self.client_authority)
        return tuple(file.stat().st_mtime_ns for file in files)

    def context(self) -> ssl.SSLContext:
        """A context that requires a client certificate signed by that CA.

        Raises:
            OSError: a file can't be read, or is invalid (`ssl.SSLError`).
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.client_authority)
        return context


class ExternalMetrics:
    """The listener; a context manager, which closes it."""

    def __init__(
        self,
        demand: FleetDemand,
        host: str,
        port: int | None,
        files: TlsFiles,
        names: Collection[str],
    ) -> None:
        """Without a port it does not listen. `names`: accepted names in client certificates."""
        self._demand, self._host, self.port = demand, host, port
        self._files, self._names = files, frozenset(names)
        self._context: tuple[tuple[int, ...], ssl.SSLContext] | None = None
        self._addresses = Counter[str]()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def configured(cls, demand: FleetDemand) -> ExternalMetrics:
        """The listener, as configured in the settings.

        Raises:
            BadSetting: it has a port, but no accepted names.
        """
        port, names = settings.EXTERNAL_METRICS_PORT, settings.EXTERNAL_METRICS_CLIENTS
        files = TlsFiles(
            Path(settings.EXTERNAL_METRICS_CERT),
            Path(settings.EXTERNAL_METRICS_KEY),
            Path(settings.EXTERNAL_METRICS_CLIENT_CA),
        )
        if port and not names:
            raise BadSetting("EXTERNAL_METRICS_CLIENTS is empty: it must name API servers")
        return cls(demand, settings.EXTERNAL_METRICS_HOST, port or None, files, names)

    async def __aenter__(self) -> ExternalMetrics:
        if self.port is not None:
            self._fresh_context()  # so that faulty files fail the start
            listening = socket.create_server((self._host, self.port), backlog=MAX_CONNECTIONS)
            listening.setblocking(False)
            self.port = listening.getsockname()[1]
            accepting = partial(self._accept, listening)
            self._keep(supervised("external metrics", accepting)).add_done_callback(
                lambda task: listening.close()
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await ended(self._tasks)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _fresh_context(self) -> ssl.SSLContext:
        state = self._files.state()
        if self._context is None or self._context[0] != state:
            self._context = state, self._files.context()
        return self._context[1]

    async def _accept(self, listening: socket.socket) -> None:
        """Accept and bound connections; asyncio's own servers report one only after its TLS
        handshake."""
        while True:
            connection, (address, *_) = await asyncio.get_running_loop().sock_accept(listening)
            taken = self._addresses
            if taken.total() >= MAX_CONNECTIONS or taken[address] >= MAX_PER_ADDRESS:
                connection.close()
            else:
                self._addresses[address] += 1
                self._keep(self._serve(connection, address))

    async def _serve(self, connection: socket.socket, address: str) -> None:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._fresh_context(),
                ssl_handshake_timeout=HANDSHAKE_S,
            )
            try:
                if name := _stranger(transport, self._names):
                    log.warning("external_metrics_refused", address=address, client=name)
                else:
                    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
                    await self._converse(reader, writer)
                    writer.close()
                    async with asyncio.timeout(HANDSHAKE_S):
                        await writer.wait_closed()
            finally:
                transport.abort()
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            log.info("external_metrics_broken", address=address, error=str(error))
        finally:
            connection.close()
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(IDLE_S):
                    connection.receive_data(await reader.read(MAX_HEAD_BYTES))
            elif isinstance(event, h11.Request):
                asked = event
            elif isinstance(event, h11.EndOfMessage):
                writer.write(self._answered(connection, asked))
                await writer.drain()
                if connection.our_state is not h11.DONE:
                    return
                connection.start_next_cycle()
            else:  # it closed, or sent a body
                return

    def _answered(self, connection: h11.Connection, asked: h11.Request) -> bytes:
        try:
            if asked.method != b"GET":
                raise MetricRefused(405, "MethodNotAllowed", "only GET is supported")
            status, told = (
                200,
                answer(asked.target.decode("latin-1"), self._demand, time.monotonic()),
            )
        except MetricRefused as refused:
            status = refused.status
            told = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "code": status,
                "reason": refused.reason,
                "message": str(refused),
            }
        body = json.dumps(told).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        parts = [
            connection.send(h11.Response(status_code=status, headers=headers)),
            connection.send(h11.Data(data=body)),
            connection.send(h11.EndOfMessage()),
        ]
        return b"".join(part for part in parts if part)


def _stranger(transport: asyncio.BaseTransport, names: Collection[str]) -> str:
    """The name in the certificate of an unaccepted client; empty if the client is accepted."""
    subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
    found = [value for part in subject for kind, value in part if kind == "commonName"]
    return "" if len(found) == 1 and found[0] in names else f"{found}"
