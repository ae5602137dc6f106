"""The periodic job that judges splits."""

from __future__ import annotations

from datetime import timedelta

import procrastinate
import structlog
from django.db import transaction
from django.utils import timezone
from procrastinate.contrib.django import app as django_app

from tenants.errors import Refused
from tenants.models import Split, SplitRequest, SplitState
from tenants.splits.judge import Act, SplitDecision, decide
from tenants.splits.reading import judged, plan_of, read

log = structlog.get_logger(__name__)
app: procrastinate.App = django_app

KEPT = timedelta(days=7)
"""How long requests of an ended split are kept."""


@app.periodic(cron="* * * * *")
@app.task(name="judge_splits", queueing_lock="judge_splits")
def judge_splits(timestamp: int) -> None:
    """Each minute: read what splits have seen, and act on it."""
    for id in Split.objects.open().values_list("pk", flat=True):
        try:
            judge(id)
        except Exception:  # the others are judged all the same
            log.exception("split_not_judged", split=id)
    forget()


def judge(id: int) -> None:
    """Read what is new of the split, and carry out what is decided. What was read, its effect on
    the tests and the act are one transaction: a job that is killed has done all of it or nothing.
    """
    more = True
    while more:
        with transaction.atomic():
            if (split := _locked(id)) is None:
                return
            more = read(split)
            split.save(update_fields=["tests", "figures", "step_requests"])
            more = not _act(split, decide(plan_of(split), judged(split))) and more


def _locked(id: int) -> Split | None:
    """The split, locked; None if it has ended."""
    if (found := Split.objects.open().filter(pk=id).first()) is None:
        return None
    found.lock_alias()
    locked = Split.objects.open().select_for_update(of=("self",)).filter(pk=id)
    return locked.select_related("adapter").first()


def _act(split: Split, decision: SplitDecision) -> bool:
    """Carry out the decision; whether the split has ended."""
    if decision.act in (Act.HOLD, Act.RAISE):
        if decision.act == Act.RAISE:
            assert split.next_weight is not None
            split.set_weight(split.next_weight, decision.reason)
        elif split.state == SplitState.RUNNING and split.reason != decision.reason:
            split.note(decision.reason)
        return False
    try:
        with transaction.atomic():
            if decision.act == Act.PROMOTE:
                split.promote(decision.reason)
            elif decision.act == Act.ROLL_BACK:
                split.end(SplitState.ROLLED_BACK, decision.reason)
            else:
                split.end(SplitState.INCONCLUSIVE, decision.reason)
    except Refused as error:
        split.end(SplitState.STOPPED, error.message)
    log.info("split_ended", split=split.pk, act=decision.act, reason=decision.reason)
    return True


def forget() -> None:
    """Delete the requests of splits that ended KEPT ago."""
    SplitRequest.objects.filter(split__ended_at__lt=timezone.now() - KEPT).delete()
