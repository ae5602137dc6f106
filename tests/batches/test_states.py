"""The states of a batch and the transitions between them."""

from __future__ import annotations

import pytest

from tenants.batch_states import ENDED, NEXT, Status, before

pytestmark = pytest.mark.pure


def test_every_state_leads_to_a_final_state() -> None:
    assert {Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED} == ENDED
    for status in Status:
        seen: set[Status] = set()
        ahead = {status}
        while ahead:
            one = ahead.pop()
            seen.add(one)
            ahead |= NEXT.get(one, frozenset()) - seen
        assert seen & ENDED, status
        assert status not in NEXT.get(status, ()), "compare-and-set knows who was first"


def test_what_comes_before() -> None:
    assert before(Status.FINALIZING) == {Status.IN_PROGRESS, Status.CANCELLING}
    assert before(Status.VALIDATING) == frozenset()
