"""Answers kept for clients that repeat a request with its idempotency key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Claim:
    """A request's claim to be the one that is generated and billed for its idempotency key.

    `name` is the key as the client wrote it, unique within an API key; `digest` is the SHA-256 of
    path and body; `request_id` distinguishes claims of repeated requests, `turn` gateways that
    adopt the same request (`accounts.turn_of`).
    """

    key_id: int
    name: str
    digest: bytes
    request_id: str
    turn: int = 1


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A whole answer as it was sent, including streams; `request_id` is that of its request."""

    request_id: str
    content_type: str
    body: bytes


class Answers(Protocol):
    """Answers kept by idempotency key, for a day after their request arrived.

    A claim lasts a few seconds and is renewed while its request runs, so that the claim of a
    process that died can be taken over. Every method raises `Unavailable` if the database cannot be
    reached.
    """

    async def claim(self, claim: Claim) -> KeptAnswer | bool:
        """The answer that is kept; else True if the claim is won, False if another one holds it.

        Expired claims and answers older than a day are overwritten, even if their body differs.

        Raises:
            IdempotencyKeyReused: the key was used with another path or body.
        """
        ...

    async def take_over(self, claim: Claim, turns: Mapping[str, int]) -> Claim | None:
        """Take over the claim of a request that runs on an engine without a gateway; returns the
        claim of the next turn. `turns` has the turns of such requests by id.

        The claim's request must be among them, in that turn; a claim of a higher turn must have
        expired. None if it is not, has another body, was taken over, or has an answer.
        """
        ...

    async def give_back(self, claim: Claim) -> None:
        """Undo a `take_over`, because the request could not be adopted: if the previous holder
        is alive, it renews its claim; otherwise the claim expires within seconds."""
        ...

    async def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """Extend these claims by some seconds, unless they were taken over; returns those that
        continue at another gateway, in a higher turn."""
        ...

    async def keep(self, claim: Claim, answer: KeptAnswer) -> bool:
        """End the claim with its answer. False if it was taken over; nothing is kept then.

        Repeating a successful call returns True again.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """End a claim without an answer: the next request with this key starts anew."""
        ...
