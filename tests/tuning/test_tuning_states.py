"""The states of a fine-tuning job and the transitions between them."""

from __future__ import annotations

import pytest

from tenants.tuning_states import ENDED, NEXT, TuningStatus, before

pytestmark = pytest.mark.pure


def test_every_state_can_be_cancelled_until_the_end() -> None:
    assert {TuningStatus.SUCCEEDED, TuningStatus.FAILED, TuningStatus.CANCELLED} == ENDED
    assert before(TuningStatus.CANCELLED) == NEXT.keys()
    assert before(TuningStatus.SUCCEEDED) == {TuningStatus.RUNNING}
    assert before(TuningStatus.VALIDATING_FILES) == frozenset()
    assert all(status not in following for status, following in NEXT.items())
