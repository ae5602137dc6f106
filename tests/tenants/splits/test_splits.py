"""Splits and their judge, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from tenants.errors import SplitEnded, SplitRunning, VersionInUse, VersionNotReady
from tenants.models import (
    AdapterVersion,
    Alias,
    AuditEntry,
    RequestScore,
    Split,
    SplitRequest,
    SplitState,
    State,
)
from tenants.models.annotations import ScoreValue
from tenants.models.splits import MAX_GUARDS, MAX_KEPT
from tenants.splits import jobs, reading
from tenants.splits.judge import decide
from tests.tenants.making import make_adapter, make_key, make_tenant, make_version

pytestmark = pytest.mark.django_db

ERRORS = {"kind": "errors", "margin": 0.02}
LIKED = {"kind": "score", "name": "liked", "margin": 0.05}


@pytest.fixture
def live() -> AdapterVersion:
    version = make_version(make_adapter(make_tenant("acme")))
    version.adapter.promote(version)
    return version


def start(live: AdapterVersion, **fields: Any) -> Split:
    alias = live.adapter.aliases.get(name="live")
    return Split.objects.start(alias, make_version(live.adapter), None, **fields)


def seen(
    split: Split, number: int, *, candidate: bool, failed: bool = False, **fields: Any
) -> SplitRequest:
    given = {"weight": split.weight, "cut": False, "ttft_s": 0.1, "ended_at": timezone.now()}
    return SplitRequest.objects.create(
        split=split,
        request_id=f"{'c' if candidate else 's'}{number}",
        candidate=candidate,
        failed=failed,
        **given | fields,
    )


def judged(split: Split) -> Split:
    jobs.judge(split.pk)
    split.refresh_from_db()
    return split


class TestStart:
    def test_begins_with_the_first_weight(self, live: AdapterVersion) -> None:
        split = start(live)
        assert (split.weight, split.state, split.stable) == (5, SplitState.RUNNING, live)

    def test_one_for_an_alias(self, live: AdapterVersion) -> None:
        start(live)
        with pytest.raises(SplitRunning):
            start(live)

    @pytest.mark.parametrize("state", [state for state in State if state != State.READY])
    def test_only_a_ready_candidate(self, live: AdapterVersion, state: State) -> None:
        other = make_version(live.adapter, state=state)
        with pytest.raises(VersionNotReady):
            Split.objects.start(live.adapter.aliases.get(), other, None)

    def test_never_another_adapters_version(self, live: AdapterVersion) -> None:
        for other in (make_adapter(live.adapter.tenant, "other"), make_adapter(make_tenant())):
            with pytest.raises(VersionNotReady):
                Split.objects.start(live.adapter.aliases.get(), make_version(other), None)

    def test_not_with_itself(self, live: AdapterVersion) -> None:
        with pytest.raises(ValidationError, match="already"):
            Split.objects.start(live.adapter.aliases.get(), live, None)

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"weights": []}, "at least one percentage"),
            ({"weights": [5, 5]}, "each above the last"),
            ({"weights": [0, 5]}, "from 1 to 99"),
            ({"weights": [50, 100]}, "from 1 to 99"),
            ({"weights": [True]}, "whole numbers"),
            ({"weights": "5"}, "whole numbers"),
            ({"guards": []}, "at least one guard"),
            ({"guards": [ERRORS] * (MAX_GUARDS + 1)}, f"1 to {MAX_GUARDS} guards"),
            ({"guards": [ERRORS] * 2}, "two guards of the kind `errors`"),
            ({"guards": [{"kind": "luck"}]}, "must be one of errors, cuts, slow, structure, score"),
            ({"guards": [ERRORS | {"name": "x"}]}, "has no field `name`"),
            ({"guards": [{"kind": "errors", "margin": float("nan")}]}, "from 0 to 1"),
            ({"guards": [{"kind": "errors", "margin": True}]}, "from 0 to 1"),
            ({"guards": [{"kind": "slow"}]}, "`seconds` of a guard must be a number"),
            ({"guards": [{"kind": "score", "name": "A b"}]}, "name of a score"),
            ({"guards": [LIKED | {"low": 1, "high": 1}]}, "must not be the same"),
            ({"sticky": "header"}, "Set `header`"),
            ({"header": "x-team"}, "Set `header`"),
            ({"sticky": "header", "header": "x team"}, "letters, digits and hyphens"),
            ({"sticky": "luck"}, "not a valid choice"),
            ({"max_requests": 0}, "greater than or equal to 1"),
        ],
    )
    def test_a_wrong_field_is_named(
        self, live: AdapterVersion, fields: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(ValidationError) as raised:
            start(live, **fields)
        assert said in str(raised.value)

    def test_a_shadow_bills_a_usable_key_of_the_tenant(self, live: AdapterVersion) -> None:
        tenant = live.adapter.tenant
        key = make_key(tenant, "inference")[0]
        for wrong, said in (
            (make_key(make_tenant(), "inference")[0], "no such key"),
            (make_key(tenant, "usage:read")[0], "lacks the scope"),
            (make_key(tenant, "inference", allowed_models=["other"])[0], "may not use"),
        ):
            with pytest.raises(ValidationError, match=said):
                start(live, shadow_key=wrong)
        for fields, said in (
            ({"promotes": True}, "does not promote"),
            ({"guards": [{"kind": "slow", "seconds": 1}]}, "guard `slow`"),
        ):
            with pytest.raises(ValidationError, match=said):
                start(live, shadow_key=key, **fields)
        assert start(live, shadow_key=key).is_shadow
        key.revoke()
        Split.objects.get().end(SplitState.STOPPED, "Enough.")
        with pytest.raises(ValidationError, match="no such key"):
            start(live, shadow_key=key)

    def test_old_ones_are_deleted(self, live: AdapterVersion) -> None:
        ids = []
        for _ in range(MAX_KEPT + 2):
            ids.append(start(live).pk)
            Split.objects.get(pk=ids[-1]).end(SplitState.STOPPED, "Enough.")
        assert not Split.objects.filter(pk=ids[0]).exists()
        assert Split.objects.filter(pk__in=ids[2:]).count() == MAX_KEPT


class TestEnd:
    def test_promotion_moves_the_alias(self, live: AdapterVersion) -> None:
        split = start(live)
        split.promote("Looks good.")
        assert (split.state, split.weight) == (SplitState.PROMOTED, 0)
        alias = Alias.objects.get()
        assert (alias.version, alias.previous) == (split.candidate, live)

    def test_whoever_changes_the_alias_ends_it(self, live: AdapterVersion) -> None:
        split = start(live)
        live.adapter.promote(make_version(live.adapter))
        split.refresh_from_db()
        assert (split.state, split.reason) == (SplitState.STOPPED, "The alias was changed.")

    def test_whoever_deletes_the_alias_ends_it(self, live: AdapterVersion) -> None:
        split = start(live)
        Alias.objects.all().delete()
        split.refresh_from_db()
        assert split.state == SplitState.STOPPED

    def test_after_its_end_nothing_changes(self, live: AdapterVersion) -> None:
        split = start(live)
        split.end(SplitState.STOPPED, "Enough.")
        for change in (
            split.pause,
            split.resume,
            lambda: split.promote("x"),
            lambda: split.set_weight(7, "x"),
            lambda: split.end(SplitState.STOPPED, "x"),
        ):
            with pytest.raises(SplitEnded):
                change()
        assert Alias.objects.get().version == live

    def test_its_candidate_stays_while_it_runs(self, live: AdapterVersion) -> None:
        split = start(live)
        for change in (split.candidate.archive, split.candidate.remove):
            with pytest.raises(VersionInUse):
                change()
        split.end(SplitState.STOPPED, "Enough.")
        split.candidate.archive()
        split.candidate.remove()

    def test_the_adapter_can_go_while_it_runs(self, live: AdapterVersion) -> None:
        start(live)
        live.adapter.discard()
        assert not Split.objects.exists()


class TestJudge:
    def test_many_errors_roll_it_back(self, live: AdapterVersion) -> None:
        split = start(live, guards=[ERRORS])
        for number in range(10):
            seen(split, number, candidate=True, failed=True)
            seen(split, number, candidate=False)
        judged(split)
        assert split.state == SplitState.ROLLED_BACK
        assert split.reason == "The candidate is worse: errors."
        assert Alias.objects.get().version == live
        (guard,) = split.figures["guards"]
        assert guard["verdict"] == "failed"
        assert guard["candidate"] == {"requests": 10, "mean": 1.0}
        assert guard["stable"] == {"requests": 10, "mean": 0.0}

    def test_requests_of_a_shadow_are_pairs(self, live: AdapterVersion) -> None:
        """As often as the weight says there is a pair; half of all are the candidate's."""
        key = make_key(live.adapter.tenant, "inference")[0]
        split = start(live, shadow_key=key, weights=[1])
        for number in range(10):  # each fails with both versions
            for candidate in (False, True):
                seen(split, number, candidate=candidate, failed=True)
        assert judged(split).state == SplitState.RUNNING
        for number in range(10, 40):
            seen(split, number, candidate=False)
            seen(split, number, candidate=True, failed=True)
        assert judged(split).state == SplitState.ROLLED_BACK
        assert live.adapter.aliases.get().version == live

    def test_one_user_with_many_errors_does_not(self, live: AdapterVersion) -> None:
        split = start(live, guards=[ERRORS])
        for number in range(10):
            seen(split, number, candidate=True, failed=True, key=1)
        assert judged(split).state == SplitState.RUNNING

    def test_only_if_the_tenant_wants_that(self, live: AdapterVersion) -> None:
        split = start(live, guards=[ERRORS], rolls_back=False)
        for number in range(10):
            seen(split, number, candidate=True, failed=True)
        judged(split)
        assert split.state == SplitState.RUNNING and "Roll it back" in split.reason

    def test_good_requests_raise_the_weight_step_by_step(self, live: AdapterVersion) -> None:
        split = start(live, weights=[5, 40], min_requests=10)
        for number in range(9):
            seen(split, number, candidate=True)
        assert judged(split).weight == 5 and "1 more request" in split.reason
        seen(split, 9, candidate=True)
        assert judged(split).weight == 40 and split.step_requests == 0
        seen(split, 10, candidate=True, weight=5)  # sent before the weight was raised
        assert judged(split).step_requests == 0

    def test_it_is_promoted_when_all_guards_pass(self, live: AdapterVersion) -> None:
        wide = ERRORS | {"margin": 0.3}
        split = start(live, weights=[50], min_requests=10, promotes=True, guards=[wide])
        for number in range(150):
            seen(split, number, candidate=True)
            seen(split, number, candidate=False)
        assert judged(split).state == SplitState.PROMOTED
        assert Alias.objects.get().version == split.candidate

    def test_slow_and_cut_answers_count(self, live: AdapterVersion) -> None:
        slow = {"kind": "slow", "seconds": 1.0, "margin": 0.02}
        split = start(live, guards=[slow, {"kind": "cuts"}], rolls_back=False)
        seen(split, 1, candidate=True, ttft_s=1.5, cut=True)
        seen(split, 2, candidate=True, ttft_s=None, failed=True)
        seen(split, 3, candidate=False, ttft_s=0.5)
        judged(split)
        first, second = split.figures["guards"]
        assert first["candidate"] == second["candidate"] == {"requests": 1, "mean": 1.0}
        assert first["stable"] == second["stable"] == {"requests": 1, "mean": 0.0}
        assert split.figures["requests"] == [1, 2]

    def test_malformed_answers_count(self, live: AdapterVersion) -> None:
        split = start(live, guards=[{"kind": "structure"}], rolls_back=False)
        for number, conforms in enumerate((True, False, None)):
            seen(split, number, candidate=True, conforms=conforms)
        (guard,) = judged(split).figures["guards"]
        assert guard["label"] == "answers that miss their schema"
        assert guard["candidate"] == {"requests": 2, "mean": 0.5}

    def test_scores_count_once_whenever_they_come(self, live: AdapterVersion) -> None:
        split = start(live, guards=[LIKED | {"low": 1, "high": 5}], rolls_back=False)
        row = seen(split, 1, candidate=True)
        seen(split, 2, candidate=False)

        def score(id: str, name: str, value: object) -> None:
            tenant, now = live.adapter.tenant, timezone.now()
            RequestScore.objects.put(tenant, id, now, None, name=name, value=ScoreValue.of(value))

        for _ in range(2):
            judged(split)
            score(row.request_id, "liked", 2)
        score(row.request_id, "other", 5)
        score("s2", "liked", "good")  # a category is no number
        score("elsewhere", "liked", 5)
        for _ in range(2):
            (guard,) = judged(split).figures["guards"]
            assert guard["candidate"] == {"requests": 1, "mean": 2.0}
            assert guard["stable"] == {"requests": 0, "mean": None}

    def test_scores_of_another_tenant_do_not_count(self, live: AdapterVersion) -> None:
        split = start(live, guards=[LIKED])
        row = seen(split, 1, candidate=True)
        RequestScore.objects.put(
            make_tenant(), row.request_id, timezone.now(), None,
            name="liked", value=ScoreValue.of(True),
        )  # fmt: skip
        assert judged(split).figures["guards"][0]["candidate"]["requests"] == 0

    def test_it_ends_without_a_decision(self, live: AdapterVersion) -> None:
        split = start(live, max_requests=2)
        seen(split, 1, candidate=True)
        seen(split, 2, candidate=False)
        assert judged(split).state == SplitState.INCONCLUSIVE and split.weight == 0
        old = start(live, max_hours=1)
        Split.objects.filter(pk=old.pk).update(created_at=timezone.now() - timedelta(hours=2))
        assert judged(old).state == SplitState.INCONCLUSIVE

    def test_an_act_forgets_no_request(self, live: AdapterVersion) -> None:
        split = start(live)
        stale = Split.objects.get(pk=split.pk)
        seen(split, 1, candidate=True)
        judged(split)
        stale.pause()
        assert stale.figures["requests"] == [0, 1]

    def test_while_paused_it_reads_and_does_not_act(self, live: AdapterVersion) -> None:
        split = start(live, guards=[ERRORS])
        split.pause()
        for number in range(10):
            seen(split, number, candidate=True, failed=True)
        assert judged(split).state == SplitState.PAUSED
        assert split.figures["guards"][0]["verdict"] == "failed"
        split.resume()
        assert judged(split).state == SplitState.ROLLED_BACK

    def test_a_killed_job_loses_and_repeats_nothing(
        self, live: AdapterVersion, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        split = start(live, guards=[ERRORS])
        for number in range(6):
            seen(split, number, candidate=True, failed=number == 3, key=number)
        monkeypatch.setattr(reading, "BATCH", 2)
        calls: Iterator[bool] = iter([False, True])

        def dying(*args: Any) -> Any:
            if next(calls, False):
                raise KeyboardInterrupt
            return decide(*args)

        monkeypatch.setattr("tenants.splits.jobs.decide", dying)
        with pytest.raises(KeyboardInterrupt), transaction.atomic():
            jobs.judge(split.pk)
        judged(split)
        assert split.figures["requests"] == [0, 6] and split.step_requests == 6
        assert split.figures["guards"][0]["candidate"] == {"requests": 6, "mean": 0.166667}
        assert not split.requests.filter(is_read=False).exists()
        assert judged(split).figures["requests"] == [0, 6]

    def test_acts_are_audited_with_figures(self, live: AdapterVersion) -> None:
        split = start(live, guards=[ERRORS], min_requests=1)
        seen(split, 1, candidate=True)
        judged(split)
        seen(split, 2, candidate=True)
        entries = AuditEntry.objects.filter(kind="split").order_by("pk")
        assert [one.action for one in entries] == ["created", "changed"]
        raised = entries[1]
        assert (raised.tenant, raised.name) == (live.adapter.tenant, "support@live")
        assert raised.before is not None and raised.after is not None
        assert raised.before["weight"] == 5 and raised.after["weight"] == 25
        assert raised.after["figures"]["requests"] == [0, 1]
        assert "tests" not in raised.after

    def test_the_job_judges_all_and_forgets(self, live: AdapterVersion) -> None:
        split = start(live)
        row = seen(split, 1, candidate=True)
        jobs.judge_splits(0)
        row.refresh_from_db()
        assert row.is_read
        split.end(SplitState.STOPPED, "Enough.")
        Split.objects.filter(pk=split.pk).update(ended_at=timezone.now() - jobs.KEPT * 2)
        jobs.judge_splits(0)
        assert not SplitRequest.objects.exists()
