"""The agent's command-line options: defaults and refusals."""

from __future__ import annotations

import pytest

from inference.agent.__main__ import MAX_ID, parser, queue_options
from inference.agent.engines.profile import BadProfile


def test_an_eighth_of_sequences_and_half_of_slots_are_reserved_by_default() -> None:
    queue = queue_options(parser().parse_args([]), 64, 4)
    assert (queue["reserved"], queue["slots_per_tenant"]) == (8, 2)
    assert queue_options(parser().parse_args([]), 1, 1)["reserved"] == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--reserved", "64"], "reserved is 64: it must be from 0 to 63"),
        (["--reserved", "-1"], "reserved is -1"),
        (["--slots-per-tenant", "0"], "slots_per_tenant is 0"),
        (["--max-queued", "0"], "max_queued is 0: it must be at least 1"),
        (["--max-queued-per-tenant", "0"], "max_queued_per_tenant is 0"),
        (["--max-queued-bytes", "64M"], "max_queued_bytes is 67108864: it must be at least"),
        (["--max-unbilled", "0"], "max_unbilled is 0"),
    ],
)
def test_a_bad_option_is_named(option: list[str], message: str) -> None:
    with pytest.raises(BadProfile, match=message):
        queue_options(parser().parse_args(option), 64, 4)


@pytest.mark.parametrize("id", ["", (MAX_ID + 1) * "e"])
def test_an_engine_id_must_fit_in_the_ledger(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--id", id])
    assert "--id: it must have 1 to 255 characters" in capsys.readouterr().err
