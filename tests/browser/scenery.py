"""A tenant that was used for a month, and a signed-in user of each role.

Rows are created in the stack's own database (`tests.browser.rows`). What needs an engine, such as
uploads that are checked and requests that are answered, goes over HTTP with the tenant's key.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from inference.content import CONFIG, FILES
from tests.browser.served import ADAPTERS, MODEL_NAME
from tests.stack.asking import CHAT, ask, until
from tests.stack.running import Stack

UPLOADS: tuple[tuple[str, str, dict[str, int]], ...] = (
    ("support", "support", {}),
    ("support", "support", {"lora_alpha": 12}),
    ("returns-dispatcher", "pirate", {}),
    ("size-advisor", "extract", {}),
    ("size-advisor", "extract", {"r": 128}),
)
"""Name, source among the demo's adapters, changes of its configuration. The last is rejected."""
JUDGED = ("ready", "rejected")


@dataclass(frozen=True)
class Scenery:
    """What was created. `sessions` are cookies by role; `key` is the text of a key."""

    slug: str
    empty: str
    """The slug of a tenant that has only its owner and a name of 60 characters."""
    key: str
    sessions: dict[str, str]
    invitation: str
    """The token of an invitation's link."""
    subject: dict[str, Any]
    """The fields of `tests.frontend.addresses.Subject`."""


def make(stack: Stack, slug: str = "harbour") -> Scenery:
    """Create a tenant with adapters, of which one version is rejected, keys, members, limits and
    usage."""
    rows = inside(stack, "make", slug)
    with stack.client(rows["key"]) as client, stack.manager(rows["key"]) as manager:
        for name, source, changes in UPLOADS:
            folder = ADAPTERS[source]
            if changes:
                folder = _changed(folder, stack.var / name, changes)
            upload(manager, name, folder)
        for number in range(12):
            _ask(client, f"What is your refund policy for order {1000 + number}?")
    return Scenery(**rows, subject=inside(stack, "subject", slug))


def inside(stack: Stack, function: str, slug: str) -> dict[str, Any]:
    """Run a function of `tests.browser.rows` on the stack's database. Returns what it prints."""
    run = f"from tests.browser import rows; rows.{function}({slug!r})"
    done = stack.manage("shell", "--no-imports", "-c", run)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _changed(source: Path, folder: Path, changes: dict[str, int]) -> Path:
    """A copy of an adapter with other values in its configuration."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((source / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | changes))
    return folder


def upload(client: httpx.Client, name: str, folder: Path) -> None:
    """Upload a folder's files as a version of this adapter, and wait until it is checked."""
    url = f"/api/v1/adapters/{name}/versions"
    files = [("files", (file, (folder / file).read_bytes())) for file in FILES]
    answer = client.post(url, files=files, data={"base_model": MODEL_NAME})
    assert answer.is_success, answer.text
    version = f"{url}/{answer.json()['number']}"
    until(lambda: client.get(version).json()["state"] in JUDGED)


def _ask(client: httpx.Client, question: str) -> None:
    body = ask("support", messages=[{"role": "user", "content": question}])
    client.post(CHAT, json=body).raise_for_status()
