"""What gateways tell of demand (`GET /demand`), for processes that scale engines."""

from __future__ import annotations

import httpx
import msgspec

ANSWER_S = 5.0


class Pool(msgspec.Struct, frozen=True):
    """What is asked of one base model, in requests."""

    demand: int
    engines: int


class EngineLoad(msgspec.Struct, frozen=True):
    """One engine, and what it has to do, in tokens."""

    id: str
    pool: str
    load: int
    draining: bool


class Fleet(msgspec.Struct, frozen=True):
    """All that one gateway tells, which is the same from each."""

    pools: dict[str, Pool]
    engines: list[EngineLoad]


class Unknown(Exception):
    """No gateway tells what is asked now."""


def ask(client: httpx.Client, gateways: list[str], token: str) -> Fleet:
    """What the first of these gateways says that answers.

    Raises:
        Unknown: none does.
    """
    headers, said = {"Authorization": f"Bearer {token}"}, []
    for url in gateways:
        try:
            answer = client.get(f"{url}/demand", headers=headers, timeout=ANSWER_S)
            if answer.status_code == httpx.codes.OK:
                return msgspec.json.decode(answer.content, type=Fleet)
            said.append(f"{url}: {answer.status_code}")
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            said.append(f"{url}: {error or type(error).__name__}")
    raise Unknown("; ".join(said))
