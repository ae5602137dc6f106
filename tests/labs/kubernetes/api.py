"""A client of Kubernetes' API, as far as the tests need it."""

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
"""Kinds that Kubernetes 1.20 has under an older version, where the fields in use are the same."""
UNKNOWN = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
"""Kinds that Kubernetes 1.20 lacks."""


class Api:
    """A client with the administrator's token; a context manager that closes its connections."""

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
        """Whether the API server is ready."""
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
        """The items of a list."""
        found: list[Object] = (await self.get(path, **parameters))["items"]
        return found

    async def create(self, path: str, body: Object) -> Object:
        """Create an object; returns it as created.

        Raises:
            httpx.HTTPStatusError: the object was refused; the message says why.
        """
        answer = await self._client.post(path, json=body)
        if answer.is_error:
            raise httpx.HTTPStatusError(answer.text, request=answer.request, response=answer)
        made: Object = answer.json()
        return made

    async def apply(self, one: Object) -> None:
        """Create an object in the version that this Kubernetes has; ignores kinds that it lacks."""
        if one["kind"] in UNKNOWN:
            return
        version = OLDER.get((one["apiVersion"], one["kind"])) or str(one["apiVersion"])
        await self.create(collection_of(one, version), one | {"apiVersion": version})

    async def patch(self, path: str, body: Mapping[str, Any], kind: str = "merge") -> bool:
        """Patch an object; returns False if it is gone. `kind` is `merge` or `strategic-merge`."""
        headers = {"Content-Type": f"application/{kind}-patch+json"}
        answer = await self._client.patch(path, json=body, headers=headers)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return False
        answer.raise_for_status()
        return True

    async def delete(self, path: str, grace_s: int | None = None) -> None:
        """Delete an object if it exists."""
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        answer = await self._client.request("DELETE", path, json=options)
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()


def collection_of(one: Object, version: str) -> str:
    """The path of the list that contains an object."""
    prefix = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = PLURALS.get(one["kind"], one["kind"].lower() + "s")
    if one["kind"] in OF_THE_CLUSTER:
        return f"{prefix}/{plural}"
    return f"{prefix}/namespaces/{one['metadata']['namespace']}/{plural}"
