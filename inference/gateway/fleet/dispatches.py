"""Signs what gateways dispatch to engines, and checks engines' reports against it. No IO, no state.

An engine reports what its requests used. Its journal keeps that for days and reports it to any
gateway, perhaps long after the one that dispatched the request has died. So a gateway signs what it
dispatches, with a key that only gateways have; the signature travels with the request's account
into the journal and comes back with the entry. Any gateway can check it without state of its own
and without a database: about 8 us per request, 5 us per entry.

The signature covers who may report (the engine's credential), what (request, attempt, tenant, key,
adapter, price, model, route, whether the engine is an overflow engine) and how much at most. Within
that bound an answer's length is the engine's word: a stream without a limit of its own may grow to
the end of the context, whatever was reserved for it so far.

A ticket lets an engine fetch an adapter's files. It is made when an adapter is dispatched, pinned
or probed, and is valid for this credential and this content alone. It does not expire, because the
engine has the files by then and content never changes.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from inference.link.accounts import Account, Dispatch, LedgerEntry, Usage
from inference.link.engine_info import AdapterRef
from inference.link.values import MAX_TIME_S
from inference.link.workload import Workload

MAC_BYTES = 16
MAX_CONTEXT = 1 << 24
"""Tokens. Bounds the context length that an engine reports."""
PROMPT_TOKENS_PER_BYTE = 4
"""A token covers at least one byte of the rendered prompt, but a chat template may render more than
the body has: it puts text around each message, and indents and escapes tools (two bytes of UTF-8
become six)."""
TEMPLATE_TOKENS = 1 << 16
"""What a chat template adds once: a system prompt, and instructions for tools."""
OVERSHOOT_TOKENS = 64
"""Per choice: tokens that may be counted beyond the step in which it should have ended."""

_encode = msgspec.msgpack.Encoder().encode


class Mismatch(StrEnum):
    """Why an entry is not billed."""

    MALFORMED = "malformed"
    """Its figures are impossible."""
    UNSIGNED = "unsigned"
    """It has no signature of a gateway."""
    NOT_DISPATCHED = "not_dispatched"
    """No gateway dispatched this attempt with this tenant, key, adapter, model and price."""
    ANOTHER_ENGINE = "another_engine"
    """It was dispatched to an engine with another credential."""
    OVER_BOUNDS = "over_bounds"
    """Its usage is above the signed bounds."""


class Bounds(NamedTuple):
    """The most that an attempt can use, in tokens."""

    prompt_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, body: bytes, context: int, workload: Workload) -> Bounds:
        """The bounds of a request on an engine with this context."""
        context = max(0, min(context, MAX_CONTEXT))
        each = workload.max_tokens
        text = workload.rereads * (PROMPT_TOKENS_PER_BYTE * len(body) + TEMPLATE_TOKENS)
        longest = context if each is None else min(context, max(0, each))
        output = workload.choices * (longest + OVERSHOOT_TOKENS)
        return cls(min(workload.prompts * context, text), output)

    def clamped(self, usage: Usage) -> Usage:
        """The usage, clamped to the bounds, and with 0 for times that no request takes; the same
        object if it is within them."""
        prompt = max(0, min(usage.prompt_tokens, self.prompt_tokens))
        cached = max(0, min(usage.cached_tokens, prompt))
        output = max(0, min(usage.completion_tokens, self.output_tokens))
        clamped = msgspec.structs.replace(
            usage,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=output,
            reasoning_tokens=max(0, min(usage.reasoning_tokens, output)),
            queue_s=_time(usage.queue_s),
            load_s=_time(usage.load_s),
            ttft_s=None if usage.ttft_s is None else _time(usage.ttft_s),
            total_s=_time(usage.total_s),
        )
        return usage if clamped == usage else clamped


def _time(seconds: float) -> float:
    return seconds if 0 <= seconds <= MAX_TIME_S else 0.0


class Dispatches:
    """Signs dispatches to engines and checks their reports. All gateways use the same key."""

    def __init__(self, key: str) -> None:
        self._key = hashlib.sha256(key.encode()).digest()

    def signed(
        self,
        account: Account,
        attempt: tuple[str, int],
        model: str,
        *,
        credential: int,
        most: Bounds,
    ) -> Account:
        """The account of an attempt, signed for the engine with this credential."""
        unsigned = Dispatch(credential, most.prompt_tokens, most.output_tokens, b"")
        mac = self._mac(account, attempt, model, unsigned)
        dispatch = Dispatch(credential, most.prompt_tokens, most.output_tokens, mac)
        return msgspec.structs.replace(account, dispatch=dispatch)

    def mismatch(self, entry: LedgerEntry, credential: int) -> Mismatch | None:
        """Why this entry from the engine with this credential is not billed; None if it is."""
        if not _possible(entry):
            return Mismatch.MALFORMED
        dispatch = entry.account.dispatch
        if dispatch is None:
            return Mismatch.UNSIGNED
        if not self._is_signed(entry.account, (entry.id, entry.attempt), entry.model, dispatch):
            return Mismatch.NOT_DISPATCHED
        if dispatch.credential != credential:
            return Mismatch.ANOTHER_ENGINE
        within = (
            entry.usage.prompt_tokens <= dispatch.prompt_tokens
            and entry.usage.completion_tokens <= dispatch.output_tokens
            and entry.usage.reasoning_tokens <= dispatch.output_tokens
            and entry.inherited_tokens <= dispatch.output_tokens
        )
        return None if within else Mismatch.OVER_BOUNDS

    def is_of(
        self, account: Account, attempt: tuple[str, int], model: str, credential: int
    ) -> bool:
        """Whether a gateway dispatched this attempt to the engine with this credential."""
        dispatch = account.dispatch
        if dispatch is None or dispatch.credential != credential:
            return False
        return self._is_signed(account, attempt, model, dispatch)

    def _is_signed(
        self, account: Account, attempt: tuple[str, int], model: str, dispatch: Dispatch
    ) -> bool:
        return hmac.compare_digest(self._mac(account, attempt, model, dispatch), dispatch.mac)

    def ticketed(self, ref: AdapterRef, credential: int) -> AdapterRef:
        """The adapter, with a ticket that lets the engine with this credential fetch its files."""
        return msgspec.structs.replace(ref, ticket=self._ticket(ref.digest, credential))

    def may_fetch(self, digest: str, credential: int, ticket: str) -> bool:
        """Whether the ticket was made for this engine and this adapter."""
        expected = self._ticket(digest, credential)
        return hmac.compare_digest(expected.encode(), ticket.encode())

    def _mac(
        self, account: Account, attempt: tuple[str, int], model: str, dispatch: Dispatch
    ) -> bytes:
        """Covers named fields, not whole structs: gateways of this release check the same entries
        and would not know a field that a later release appends."""
        fields: tuple[Any, ...] = (
            *attempt,
            model,
            account.tenant_id,
            account.key_id,
            account.started_at,
            account.base_model,
            account.adapter_id,
            account.version_id,
            account.price,
            dispatch.credential,
            dispatch.prompt_tokens,
            dispatch.output_tokens,
            account.overflow,
            account.route,
        )
        return self._digest(b"dispatch", _encode(fields))

    def _ticket(self, digest: str, credential: int) -> str:
        return self._digest(b"ticket", _encode((digest, credential))).hex()

    def _digest(self, purpose: bytes, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._key, person=purpose, digest_size=MAC_BYTES).digest()


def _possible(entry: LedgerEntry) -> bool:
    """Whether a request can have these figures at all."""
    usage = entry.usage
    return (
        entry.attempt >= 1
        and 0 <= usage.cached_tokens <= usage.prompt_tokens
        and usage.completion_tokens >= 0
        and usage.reasoning_tokens >= 0
        and entry.inherited_tokens >= 0
    )
