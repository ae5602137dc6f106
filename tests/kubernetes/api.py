"""Kubernetes' API, as far as the tests need it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

Object = dict[str, Any]

PLURALS = {
    "APIService": "apiservices",
    "Ingress": "ingresses",
    "NetworkPolicy": "networkpolicies",
    "Endpoints": "endpoints",
}
OF_THE_CLUSTER = {"Namespace", "Node", "PersistentVolume", "APIService"}
OLDER = {
    ("autoscaling/v2", "HorizontalPodAutoscaler"): "autoscaling/v2beta2",
    ("policy/v1", "PodDisruptionBudget"): "policy/v1beta1",
}
"""What Kubernetes 1.20 has under an older version, with the same fields as far as we use them."""
UNKNOWN = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
"""What it lacks."""


class Api:
    """As the administrator; a context, which ends its connections."""

    def __init__(self, url: str, authority: Path, token: str) -> None:
        self._client = httpx.AsyncClient(
            base_url=url,
            verify=ssl.create_default_context(cafile=authority),
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
            trust_env=False,
        )

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def answers(self) -> bool:
        """Whether it is ready."""
        try:
            return (await self._client.get("/readyz")).status_code == 200
        except httpx.HTTPError:
            return False

    async def get(self, path: str, **parameters: str) -> Object:
        """One object, or a list."""
        answer = await self._client.get(path, params=parameters)
        found: Object = answer.raise_for_status().json()
        return found

    async def items(self, path: str, **parameters: str) -> list[Object]:
        """Those of a list."""
        found: list[Object] = (await self.get(path, **parameters))["items"]
        return found

    async def create(self, path: str, body: Object) -> Object:
        """What is made of it.

        Raises:
            httpx.HTTPStatusError: it is refused; the message says why.
        """
        answer = await self._client.post(path, json=body)
        if answer.is_error:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        made: Object = answer.json()
        return made

    async def apply(self, one: Object) -> None:
        """Make it. What this Kubernetes has no room for is left out."""
        if one["kind"] in UNKNOWN:
            return
        version = OLDER.get((one["apiVersion"], one["kind"])) or str(one["apiVersion"])
        await self.create(collection_of(one, version), one | {"apiVersion": version})

    async def patch(self, path: str, body: Mapping[str, Any], kind: str = "merge") -> bool:
        """Change it; False if it is gone. `kind` is `merge` or `strategic-merge`."""
        headers = {"Content-Type": f"application/{kind}-patch+json"}
        answer = await self._client.patch(path, json=body, headers=headers)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return False
        answer.raise_for_status()
        return True

    async def delete(self, path: str, grace_s: int | None = None) -> None:
        """Delete it, if it is there."""
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        answer = await self._client.request("DELETE", path, json=options)
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()


def collection_of(one: Object, version: str) -> str:
    """The path of the list in which it is."""
    prefix = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = PLURALS.get(one["kind"], one["kind"].lower() + "s")
    if one["kind"] in OF_THE_CLUSTER:
        return f"{prefix}/{plural}"
    return f"{prefix}/namespaces/{one['metadata']['namespace']}/{plural}"
