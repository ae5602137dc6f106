"""How many tokens a tenant may train in 24 hours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError
from django.utils import timezone

from inference.errors import InsufficientQuota
from tenants.limits.kinds import TRAINED
from tenants.models import FineTuningJob, LimitScope, LimitSet, StoredFile, Tenant, TuningEvent
from tenants.models.training_limits import TrainedJob, TrainingRoom, limits_of
from tenants.models.tuning import must_wait
from tenants.tuning import jobs, starting
from tenants.tuning.child.rows import TOKEN_BYTES, row_of
from tenants.tuning_states import DPO, SUPERVISED, TuningStatus
from tests.tenants.making import make_key, make_tenant
from tests.tuning.conftest import MakeFile, MakeJob
from tests.tuning.rows import ROWS, dialogue, jsonl

MODEL = "lorikeet-demo"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
OPERATOR, OWN = LimitSet.Author.OPERATOR, LimitSet.Author.TENANT
Limit = Callable[..., None]


def limit(tokens: int | None, tenant: Tenant | None, author: LimitSet.Author = OPERATOR) -> None:
    LimitScope(tenant).store(author, {TRAINED.name: tokens})


def claimed(number: int = 1) -> FineTuningJob | None:
    bases = FineTuningJob.objects.values_list("base_model__name", flat=True)
    return FineTuningJob.objects.claim(number, set(bases))


@pytest.fixture
def queued(make_job: MakeJob) -> Callable[..., FineTuningJob]:
    """Makes queued jobs that take so many tokens."""

    def made(tokens: int, **fields: object) -> FineTuningJob:
        return make_job(**{"status": TuningStatus.QUEUED, "expected_tokens": tokens} | fields)

    return made


@pytest.mark.pure
class TestRoom:
    JOBS = (
        TrainedJob(50, NOW - timedelta(hours=2)),
        TrainedJob(30, NOW - timedelta(hours=20)),
        TrainedJob(15, None),
    )

    @pytest.mark.parametrize(
        ("tokens", "hours"), [(5, 4), (35, 4), (36, 22), (85, 22), (86, None), (101, None)]
    )
    def test_when_there_is_room(self, tokens: int, hours: int | None) -> None:
        room = TrainingRoom(100, self.JOBS)
        expected = None if hours is None else NOW + timedelta(hours=hours)
        assert room.free_at(tokens) == expected and room.trained == 95
        assert room.has(tokens) == (tokens <= 5)

    def test_estimates(self) -> None:
        row = row_of(jsonl([dialogue("x" * 400, "y" * 40)]).strip(), SUPERVISED)
        [one] = row.dialogues
        assert one.estimated_tokens == 440 // TOKEN_BYTES + 12
        tools = {"tools": [{"type": "function", "function": {"name": "f" * 100}}]}
        more = row_of(jsonl([dialogue("x" * 400, "y" * 40) | tools]).strip(), SUPERVISED)
        assert more.dialogues[0].estimated_tokens > one.estimated_tokens + 100 // TOKEN_BYTES
        call = {"function": {"name": "find", "arguments": "{}"}}
        said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]}]
        called = row_of(jsonl([{"messages": said}]).strip(), SUPERVISED).dialogues[0]
        assert called.estimated_tokens > 12
        pair = {
            "input": {"messages": [{"role": "user", "content": "x" * 400}]},
            "preferred_output": [{"role": "assistant", "content": "y" * 40}],
            "non_preferred_output": [{"role": "assistant", "content": "z" * 40}],
        }
        both = row_of(jsonl([pair]).strip(), DPO).dialogues
        assert sum(one.estimated_tokens for one in both) == 2 * one.estimated_tokens


@pytest.mark.django_db(transaction=True)
class TestJobs:
    def test_the_lowest_limit_is_in_force(self, tenant: Tenant) -> None:
        other = make_tenant()
        assert limits_of([tenant.pk]) == {}
        limit(100, None)
        assert limits_of([tenant.pk, other.pk]) == {tenant.pk: 100, other.pk: 100}
        limit(500, tenant)
        limit(300, tenant, OWN)
        assert limits_of([tenant.pk, other.pk]) == {tenant.pk: 300, other.pk: 100}

    def test_keys_and_adapters_have_none(self, tenant: Tenant) -> None:
        scope = LimitScope(tenant, key=make_key(tenant)[0])
        with pytest.raises(IntegrityError):
            scope.store(OWN, {TRAINED.name: 5})

    def test_a_job_waits_until_there_is_room(
        self, queued: Callable[..., FineTuningJob], make_job: MakeJob, tenant: Tenant
    ) -> None:
        limit(1000, tenant)
        ended = {"status": TuningStatus.SUCCEEDED, "trained_tokens": 700}
        make_job(**ended, finished_at=timezone.now() - timedelta(hours=30))
        recent = make_job(**ended, finished_at=timezone.now() - timedelta(hours=10))
        job = queued(400)
        assert claimed() is None
        jobs.tell_waiting([job])
        job.refresh_from_db()
        assert job.waits_until == recent.finished_at + timedelta(days=1)  # type: ignore[operator]
        [told] = [one.message for one in job.events.all() if one.message.startswith("It waits")]
        assert told == (
            "It waits: the tenant's limit `trained_tokens_per_day` is 1,000, of which 700 are "
            f"used; the job takes about 400. It can be trained at {job.waits_until:%Y-%m-%d %H:%M}"
            " UTC at the latest."
        )
        jobs.tend_tuning(timestamp=0)
        assert job.events.filter(message__startswith="It waits").count() == 1, "told once"
        FineTuningJob.objects.filter(pk=job.pk).update(waits_until=timezone.now())
        jobs.tend_tuning(timestamp=0)
        assert job.events.filter(message__startswith="It waits").count() == 2
        FineTuningJob.objects.filter(pk=recent.pk).update(
            finished_at=timezone.now() - timedelta(hours=25)
        )
        found = claimed()
        assert found == job and found.waits_until is None

    def test_others_go_before_a_job_that_waits(
        self, queued: Callable[..., FineTuningJob], make_file: MakeFile, tenant: Tenant
    ) -> None:
        limit(1000, tenant)
        large, small = queued(900), queued(100)
        other = make_tenant()
        theirs = queued(10**9, owner=other)
        assert [claimed(n) for n in range(1, 4)] == [large, theirs, small]
        third = queued(1)
        assert claimed(4) is None, "what is being trained counts with all its tokens"
        jobs.tell_waiting([third])
        assert third.events.filter(message__endswith="It can be trained later.").exists()
        limit(1001, tenant)
        assert claimed(4) == third

    def test_only_the_tokens_of_the_last_24_hours_count(
        self, queued: Callable[..., FineTuningJob], make_job: MakeJob, tenant: Tenant
    ) -> None:
        limit(1000, tenant)
        paused = make_job(
            status=TuningStatus.PAUSED,
            trained_tokens=950,
            expected_tokens=5000,
            created_at=timezone.now() - timedelta(days=3),
        )
        for hours, tokens in ((60, 300), (50, 900), (2, 950)):
            TuningEvent.objects.create(
                job=paused,
                level="info",
                message="Step",
                data={"trained_tokens": tokens},
                created_at=timezone.now() - timedelta(hours=hours),
            )
        job, larger = queued(950), queued(951)
        assert [*must_wait([job, larger])] == [larger.pk]

    def test_a_job_that_goes_on_takes_what_is_left(
        self, queued: Callable[..., FineTuningJob], tenant: Tenant
    ) -> None:
        limit(1000, tenant)
        job = queued(1000, trained_tokens=600)
        assert job.tokens_to_train == 400 and claimed() == job

    def test_a_job_above_the_limit_is_refused_when_its_files_are_read(
        self, make_job: MakeJob, tenant: Tenant
    ) -> None:
        limit(10, tenant)
        job = make_job()
        jobs.read_files(job_id=job.pk)
        job.refresh_from_db()
        assert job.status == TuningStatus.FAILED and job.error is not None
        assert job.error["code"] == "training_limit_exceeded"
        assert "`trained_tokens_per_day` is 10." in job.error["message"]

    def test_the_tokens_of_a_job_are_estimated(self, make_job: MakeJob, tenant: Tenant) -> None:
        job = make_job()
        jobs.read_files(job_id=job.pk)
        job.refresh_from_db()
        rows = [row_of(jsonl([row]).strip(), SUPERVISED) for row in ROWS]
        tokens = sum(row.dialogues[0].estimated_tokens for row in rows)
        assert job.expected_tokens == 2 * tokens > 100

    def test_a_tenant_that_may_not_train_is_told_at_once(
        self, tenant: Tenant, make_job: MakeJob, make_file: MakeFile
    ) -> None:
        limit(0, tenant)
        job, file = make_job(), make_file()
        assert isinstance(file, StoredFile)
        again = FineTuningJob(
            tenant=tenant,
            key=job.key,
            base_model=job.base_model,
            hyperparameters=job.hyperparameters,
            seed=1,
        )
        with pytest.raises(InsufficientQuota, match="`trained_tokens_per_day` is 0"):
            starting.start(again, file.pk)
