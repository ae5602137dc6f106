"""Tenants that send mostly invalid requests are slowed down; others are not."""

from __future__ import annotations

import pytest

from inference.pacing import (
    FREE,
    HALF_LIFE_S,
    MAX_SENDERS,
    MAX_WAIT_S,
    SPACING_S,
    Pacing,
)

pytestmark = pytest.mark.pure

ACME, GLOBEX = 1, 2
MANY = int(FREE) + 1


def refused(pacing: Pacing, count: int, now: float = 0.0, tenant: int = ACME) -> None:
    for _ in range(count):
        pacing.note(tenant, now, refused=True)


def test_a_few_mistakes_are_free() -> None:
    pacing = Pacing()
    refused(pacing, int(FREE))
    assert [pacing.wait_s(ACME, 0.0) for _ in range(50)] == [0.0] * 50


def test_then_requests_are_spaced_until_they_would_wait_too_long() -> None:
    pacing = Pacing()
    refused(pacing, MANY)
    waits = [pacing.wait_s(ACME, 0.0) for _ in range(20)]
    started = [wait for wait in waits if wait is not None]
    assert started == pytest.approx([i * SPACING_S for i in range(len(started))])
    assert started[-1] <= MAX_WAIT_S
    assert waits[len(started) :] == [None] * (20 - len(started)), "nothing is taken by them"
    assert pacing.wait_s(ACME, 10.0) == 0.0, "their places have passed"


def test_requests_of_a_slowed_sender_are_spaced() -> None:
    """However many requests arrive within ten seconds."""
    pacing = Pacing()
    refused(pacing, MANY)
    starts = 0
    for tick in range(10_000):
        if pacing.wait_s(ACME, tick / 1000) is not None:
            starts += 1
            refused(pacing, 1, tick / 1000)
    assert starts <= (10 + MAX_WAIT_S) / SPACING_S + 1


def test_another_tenant_notices_nothing() -> None:
    pacing = Pacing()
    refused(pacing, 1000)
    assert [pacing.wait_s(GLOBEX, 0.0) for _ in range(100)] == [0.0] * 100
    pacing.note(GLOBEX, 0.0, refused=False)
    assert pacing.wait_s(GLOBEX, 0.0) == 0.0


def test_a_sender_with_mostly_valid_requests_is_not_slowed() -> None:
    pacing = Pacing()
    refused(pacing, MANY)
    pacing.note(ACME, 0.0, refused=False)
    refused(pacing, 50)
    assert pacing.wait_s(ACME, 0.0) is not None
    for _ in range(60):
        pacing.note(ACME, 0.0, refused=False)
    assert [pacing.wait_s(ACME, 0.0) for _ in range(50)] == [0.0] * 50


def test_it_is_forgotten_with_time() -> None:
    pacing = Pacing()
    refused(pacing, 2 * MANY)
    pacing.wait_s(ACME, 0.0)
    assert pacing.wait_s(ACME, 0.0) != 0.0
    assert [pacing.wait_s(ACME, 2 * HALF_LIFE_S) for _ in range(9)] == [0.0] * 9


def test_the_number_of_remembered_senders_is_bounded() -> None:
    pacing = Pacing()
    refused(pacing, MANY)
    for tenant in range(10, 10 + MAX_SENDERS):
        refused(pacing, 1, tenant=tenant)
    assert len(pacing._records) == MAX_SENDERS
    assert [pacing.wait_s(ACME, 0.0) for _ in range(9)] == [0.0] * 9
