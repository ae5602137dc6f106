"""A provider of `external.metrics.k8s.io`, in place of Prometheus and prometheus-adapter: it has
one metric, `lorikeet_pool_demand`, from the gateways.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import httpx
import uvicorn

from tests.labs.kubernetes.control_plane import Keys
from tests.labs.kubernetes.network import HOST_IP

GROUP = "external.metrics.k8s.io/v1beta1"
METRIC = "lorikeet_pool_demand"
PORT = 8443
RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": GROUP,
    "resources": [
        {
            "name": METRIC,
            "singularName": "",
            "namespaced": True,
            "kind": "ExternalMetricValueList",
            "verbs": ["get"],
        }
    ],
}


@asynccontextmanager
async def provider(keys: Keys, gateway: Callable[[], str], token: str) -> AsyncIterator[None]:
    """Serve in the block; `gateway()` is the address of a gateway, `token` its METRICS_TOKEN."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as client:

        async def app(scope: Any, receive: Any, send: Any) -> None:
            status, told = 200, RESOURCES
            if scope["path"].endswith(METRIC):
                selector = parse_qs(scope["query_string"].decode()).get("labelSelector", [""])[0]
                base_model = selector.partition("=")[2]
                try:
                    answer = await client.get(f"{gateway()}/demand", params={"pool": base_model})
                    told = _values(base_model, answer.raise_for_status().json()["demand"])
                except (httpx.HTTPError, KeyError) as error:  # no gateway is ready
                    status, told = 503, {"kind": "Status", "message": str(error)}
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(told).encode()})

        server = uvicorn.Server(
            uvicorn.Config(
                app,
                host=HOST_IP,
                port=PORT,
                lifespan="off",
                log_config=None,
                ssl_certfile=keys.file("api.crt"),
                ssl_keyfile=keys.file("api.key"),
            )
        )
        serving = asyncio.create_task(server.serve())
        try:
            yield
        finally:
            server.should_exit = server.force_exit = True
            await serving


def _values(base_model: str, demand: float) -> dict[str, Any]:
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": GROUP,
        "metadata": {},
        "items": [
            {
                "metricName": METRIC,
                "metricLabels": {"base_model": base_model},
                "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "value": str(demand),
            }
        ],
    }
