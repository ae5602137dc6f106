"""Client of the gateways' `GET /demand`, for processes that scale engines."""

from __future__ import annotations

import httpx
import msgspec

ANSWER_S = 5.0


class ScaledPool(msgspec.Struct, frozen=True):
    """The demand for one base model, in requests, and the number of its engines."""

    demand: int
    engines: int


class EngineLoad(msgspec.Struct, frozen=True):
    """One engine and its load, in tokens."""

    id: str
    pool: str
    load: int
    draining: bool


class ScaledFleet(msgspec.Struct, frozen=True):
    """A gateway's answer, which is the same from each gateway."""

    pools: dict[str, ScaledPool]
    engines: list[EngineLoad]


class UnknownFleet(Exception):
    """No gateway reports the present demand."""


def ask(client: httpx.Client, gateways: list[str], token: str) -> ScaledFleet:
    """The answer of the first of these gateways that answers.

    Raises:
        Unknown: none does.
    """
    headers, failures = {"Authorization": f"Bearer {token}"}, []
    for url in gateways:
        try:
            answer = client.get(f"{url}/demand", headers=headers, timeout=ANSWER_S)
            if answer.status_code == httpx.codes.OK:
                return msgspec.json.decode(answer.content, type=ScaledFleet)
            failures.append(f"{url}: {answer.status_code}")
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            failures.append(f"{url}: {error or type(error).__name__}")
    raise UnknownFleet("; ".join(failures))
