"""A thousand adapters of one base model, whose engine is killed and started again.

They are rows: each has the files of one adapter that the worker has checked. The engine is a
synthetic one of its own pool, beside the vLLM engine that serves the bystander.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import demo
from tests.labs.attack.attacks import Attack
from tests.labs.attack.raw import Target, request, send
from tests.stack.asking import until
from tests.stack.engines import engine_credential, engine_process
from tests.stack.running import Stack

BASE_MODEL = "away"
MODEL = (BASE_MODEL, demo.BASE)
TENANTS, ADAPTERS = 64, 16
"""How many tenants, and adapters of each."""


def make(slug: str) -> None:
    """Make the rows from the first adapter of the tenant `slug`, and print the tenants' keys. For
    `manage.py shell`."""
    from tenants.models import Adapter, AdapterVersion, ApiKey, BaseModel, Tenant

    base = BaseModel.objects.get(name=BASE_MODEL)
    source = AdapterVersion.objects.filter(adapter__tenant__slug=slug, state="ready")[0]
    same = ("digest", "state", "size_bytes", "folder", "config", "report")
    keys = []
    for number in range(TENANTS):
        tenant = Tenant.objects.create(slug=f"away-{number}", name=f"Away {number}")
        keys.append(ApiKey.objects.issue(tenant, name="attack", scopes=["inference"])[1])
        for name in _names():
            adapter = Adapter.objects.create(tenant=tenant, name=name, base_model=base)
            version, _ = adapter.add_version(**{one: getattr(source, one) for one in same})
            adapter.promote(version)
    print(json.dumps(keys))


def _names() -> list[str]:
    return [f"a{number}" for number in range(ADAPTERS)]


@dataclass
class ThousandAdapters:
    """Their tenants' keys, and their engine, which is away from time to time."""

    stack: Stack
    credential: str
    keys: list[str] = field(default_factory=list)

    async def attack(self, target: Target) -> None:
        """Again and again: all adapters are asked while the engine is away, and it comes back. It
        takes seconds to start."""
        while True:
            with self.engine():
                async with asyncio.TaskGroup() as tasks:
                    for key in self.keys:
                        for name in _names():
                            question = _question(target, key, name)
                            tasks.create_task(send(target, target.gateway, question))

    @contextmanager
    def engine(self) -> Iterator[None]:
        """The engine, which is killed at the end: it does not drain."""
        with engine_process(self.stack, BASE_MODEL, self.credential, model=MODEL) as process:
            yield
            process.kill()


def prepare(stack: Stack) -> Attack:
    """The attack, once the engine has made its base model known and the rows are made."""
    thousand = ThousandAdapters(stack, engine_credential(stack, BASE_MODEL, BASE_MODEL))
    slug = stack.facts["tenants"][0]["slug"]
    with thousand.engine(), stack.client(stack.key(slug)) as client:
        until(lambda: client.get(f"/v1/models/{BASE_MODEL}").is_success)
        made = stack.manage(
            "shell", "-v", "0", "-c", f"from {__name__} import make; make({slug!r})"
        )
    assert made.returncode == 0, made.stderr
    thousand.keys = json.loads(made.stdout)
    return thousand.attack


def _question(target: Target, key: str, name: str) -> bytes:
    body = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    headers = target.headers() | {"Authorization": f"Bearer {key}"}
    return request("POST", "/v1/chat/completions", headers, json.dumps(body).encode())
