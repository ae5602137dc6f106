"""A split of a running stack, from its first request to the promotion."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest
from openai import OpenAI

from demo import ADAPTERS, TENANTS
from inference.content import CONFIG
from inference.splitting import KEY_BYTES, place
from tests.browser.scenery import upload
from tests.stack.asking import until
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

SUPPORT = TENANTS[0]
NAME, WEIGHT = "shared", 10
PATH = f"/api/v1/adapters/{NAME}/aliases/live/split"


def test_a_tenth_of_the_users_gets_the_candidate_until_it_is_promoted(
    stack: Stack, tmp_path: Path
) -> None:
    key = stack.key(SUPPORT.slug)
    with stack.manager(key) as manager:
        upload(manager, NAME, ADAPTERS["support"])
        upload(manager, NAME, changed(tmp_path / "second"))
        plan = {"version": 2, "weights": [WEIGHT], "sticky": "user"}
        split = manager.post(PATH, json=plan).json()
        users = [f"user {number}" for number in range(60)]
        lucky = [user for user in users if _is_candidates(split["id"], user)]
        others = [user for user in users if user not in lucky][: 2 * len(lucky)]
        client = OpenAI(base_url=f"{stack.url}/v1", api_key=key)
        until(lambda: _version(stack, _asked(client, lucky[0])) == 2)  # the gateway knows
        answered = {user: [_asked(client, user) for _ in range(2)] for user in lucky + others}
        for user, ids in answered.items():
            expected = 2 if user in lucky else 1
            assert [_version(stack, id) for id in ids] == [expected] * 2, user
        asked = 2 * len(answered)
        until(lambda: _observed(stack, split["id"]) >= asked)
        done = stack.manage(
            "shell", "--no-imports", "-c",
            f"from tenants.splits.jobs import judge; judge({split['id']})",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = manager.get(PATH).json()
        assert found["figures"]["requests"][0] == 2 * len(others)
        assert found["figures"]["requests"][1] >= 2 * len(lucky)
        assert found["figures"]["guards"][0]["candidate"]["mean"] == 0
        assert manager.post(f"{PATH}/promote").json()["state"] == "promoted"
        until(lambda: _version(stack, _asked(client, others[0])) == 2)


def changed(folder: Path) -> Path:
    """A copy of the demo's adapter with other content."""
    shutil.copytree(ADAPTERS["support"], folder)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"lora_alpha": 12}))
    return folder


def _is_candidates(split: int, user: str) -> bool:
    return 100 * place(split, user.encode()) < WEIGHT << 8 * KEY_BYTES


def _asked(client: OpenAI, user: str) -> str:
    """Ask something as this user. Returns the request's id."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    answer = client.chat.completions.create(model=NAME, messages=messages, user=user, max_tokens=2)
    return answer.id.removeprefix("chatcmpl-")


def _version(stack: Stack, id: str) -> int:
    """The number of the version that answered the request, by the ledger."""
    found: list[int] = []
    query = """SELECT version.number FROM tenants_usageevent event
        JOIN tenants_adapterversion version ON version.id = event.version_id WHERE event.id = %s"""
    until(lambda: found or found.extend(_numbers(stack, query, id)) or found)
    return found[0]


def _observed(stack: Stack, split: int) -> int:
    query = "SELECT count(*) FROM tenants_splitrequest WHERE split_id = %s"
    return _numbers(stack, query, split)[0]


def _numbers(stack: Stack, query: str, value: object) -> list[int]:
    with psycopg.connect(stack.database_url) as connection:
        return [row[0] for row in connection.execute(query, [value])]
