"""The behaviour probe: an engine loads the adapter; its output must change and be finite."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from inference.errors import AdapterLoadFailed
from inference.link.engine_info import AdapterRef
from tenants.adapters.checks.findings import Code, Finding

MIN_LOGPROB_DELTA = 1e-3
"""The smallest change of a log-probability that counts as an effect, in nats.

An adapter with lora_B = 0 changes nothing but rounding: about 1e-6 in float32 on the same prompt. A
trained one moves some log-probability by more than 0.1. The same threshold serves for the numbers
of a vector of length 1, some of which a trained adapter moves by more than 0.01.
"""
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 300.0
"""The engine may first have to fetch gigabytes and wait for a free slot."""


class ProbedPrompt(msgspec.Struct):
    """A prompt's tokens and the log-probabilities of all but the first."""

    ids: list[int]
    base: list[float]
    adapted: list[float]


class ProbeReport(msgspec.Struct):
    """What the engine found (`inference.agent.engines.engine.EngineProbeReport`).

    `max_logprob_delta` is None if it is not finite, because JSON has no such number. With
    `of_vector` it is the largest change of a vector's numbers.
    """

    load_s: float
    weight_bytes: int
    max_logprob_delta: float | None
    finite: bool
    base_text: str
    adapter_text: str
    of_vector: bool = False
    prompts: list[ProbedPrompt] = []
    rows: list[ProbedPrompt] = []

    def verdict(self) -> Finding | None:
        """Why the adapter is rejected; None if it passed."""
        delta = self.max_logprob_delta
        if not self.finite or delta is None or not math.isfinite(delta):
            return Finding(
                Code.NOT_FINITE_OUTPUT, "The engine's output with this adapter is not finite."
            )
        if delta <= MIN_LOGPROB_DELTA:
            what = "component of a vector" if self.of_vector else "log-probability"
            return Finding(
                Code.NO_EFFECT,
                f"The adapter changes no {what} by more than {MIN_LOGPROB_DELTA} (the "
                f"largest change is {delta:.2g}), so it would answer like the base model.",
            )
        return None

    def as_json(self) -> dict[str, Any]:
        """For the version's report, without the prompts; PostgreSQL's JSON cannot hold NUL."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        del fields["prompts"], fields["rows"]
        return {
            name: value.replace("\0", "\N{REPLACEMENT CHARACTER}")
            if isinstance(value, str)
            else value
            for name, value in fields.items()
        }


class _Error(msgspec.Struct):
    code: str
    message: str


class _ErrorBody(msgspec.Struct):
    error: _Error


class ProbeUnavailable(Exception):
    """No engine could try the adapter now; this says nothing about the adapter."""


class LoadFailed(Exception):
    """An engine tried to load the adapter and failed; the message is the engine's."""


def ask(
    gateways: Sequence[str],
    token: str,
    *,
    base_model: str,
    adapter: AdapterRef,
    revision: str = "",
    rows: Sequence[list[int]] = (),
) -> ProbeReport:
    """Have an engine that serves `base_model` (at `revision`, if given) try the adapter, also on
    these rows of tokens. Asks the gateways one after another.

    Raises:
        ProbeUnavailable: no gateway has an engine that could try it.
        LoadFailed: an engine could not load it.
    """
    if not gateways:
        raise ProbeUnavailable("no gateway is alive")
    body = {"base_model": base_model, **msgspec.structs.asdict(adapter)}
    if rows:
        body["rows"] = [*rows]
    if revision:
        body["revision"] = revision
    reasons = []
    timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(timeout=timeout, headers=headers, trust_env=False) as client:
        # Every gateway reaches every engine; the random order spreads the probes over the gateways.
        for url in random.sample(list(gateways), len(gateways)):
            try:
                return _answer(client.post(f"{url}/engine/probe", json=body))
            except (httpx.HTTPError, ProbeUnavailable) as error:
                reasons.append(f"{url}: {error or type(error).__name__}")
    raise ProbeUnavailable("; ".join(reasons))


def _answer(response: httpx.Response) -> ProbeReport:
    try:
        if response.is_success:
            return msgspec.json.decode(response.content, type=ProbeReport)
        error = msgspec.json.decode(response.content, type=_ErrorBody).error
    except msgspec.MsgspecError as problem:
        raise ProbeUnavailable(f"answered {response.status_code} in an unknown format") from problem
    if error.code == AdapterLoadFailed.code:
        raise LoadFailed(error.message)
    raise ProbeUnavailable(f"{error.code}: {error.message}")
