"""Retries of requests that the server could not answer at the moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import httpx

from lorikeet.failures import Unreachable

ATTEMPTS = 6
"""Failed attempts in a row before giving up; the pauses between them double from PAUSE_S."""
PAUSE_S = 1.0

FAILED = (httpx.TransportError, Unreachable)
"""What a failed attempt raises."""

T = TypeVar("T")


def pause(failed: int) -> None:
    """Wait after this many failed attempts in a row."""
    time.sleep(PAUSE_S * 2 ** (failed - 1))


def insisting(ask: Callable[[], T]) -> T:
    """Call `ask` and return its result; retries while the server cannot be reached.

    Raises:
        Unreachable: ATTEMPTS attempts failed in a row.
    """
    for failed in range(1, ATTEMPTS):
        try:
            return ask()
        except FAILED:
            pause(failed)
    try:
        return ask()
    except httpx.TransportError as error:
        raise Unreachable.of(error) from error
