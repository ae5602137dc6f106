"""The background job that fits a route. It reads the results of runs in a child process with
limits, as whatever else clients wrote."""

from __future__ import annotations

import base64
from contextlib import ExitStack
from dataclasses import replace
from typing import IO, Any

import procrastinate
import structlog
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from procrastinate.contrib.django import app as django_app

from tenants.adapters import sandbox
from tenants.batches import jobs as batches
from tenants.evals.criteria import LOGPROB
from tenants.models import Eval, EvalRun, Route
from tenants.queueing import defer_once
from tenants.routes.fitting import MAX_ROWS
from tenants.storage import scratch

app: procrastinate.App = django_app
log = structlog.get_logger(__name__)

MAX_BYTES = 256 << 20
"""Of the results of one run."""
AT_ONCE = 50
CPU_S = 60
"""MAX_ROWS rows with four options take about a sixth of it."""


class FitFailed(Exception):
    """The route is not fitted; the message says why."""


def fit_later(route: Route, eval: Eval) -> None:
    """Have a worker fit the route on the newest completed runs of the eval, one of each option.

    Raises:
        ValidationError: an option has no such run, all are free, or a cascade lacks what it is
            fitted by.
        RouteBeingFitted: it is being fitted already.
    """
    if route.is_cascade and not any(one["type"] == LOGPROB for one in eval.criteria):
        raise ValidationError(
            f"The eval {eval.label} has no criterion of the type {LOGPROB}, which keeps how sure "
            "answers are: a cascade is fitted by that."
        )
    route.prices()
    route.runs_of(eval)
    with transaction.atomic():
        route.begin_fit(eval)
        _queue(route)


def _queue(route: Route) -> None:
    """Queue the fit that began at `fitting_since`, unless it is queued or running."""
    assert route.fitting_since is not None
    began = route.fitting_since.isoformat()
    defer_once(fit_route, f"route-{route.pk}-{began}", route_id=route.pk, began=began)


@app.periodic(cron="*/5 * * * *")
@app.task(name="tend_routes", queueing_lock="tend_routes")
def tend_routes(timestamp: int) -> None:
    """Every five minutes: queue the fits that lost their jobs."""
    for route in Route.objects.exclude(fitting_since=None).defer("packed", "report"):
        _queue(route)


@app.task(name="fit_route", queue=batches.QUEUE)
def fit_route(route_id: int, began: str) -> None:
    """Fit the route, unless it was asked for again meanwhile, and turn it on or off."""
    found = Route.objects.select_related("tenant", "eval").filter(pk=route_id).first()
    if found is None or found.fitting_since is None or found.fitting_since.isoformat() != began:
        return
    try:
        fitted = _computed(found)
    except FitFailed as failed:
        found.end_fit(f"It was not fitted: {failed}")
    except ValidationError as error:
        found.end_fit(f"It was not fitted: {' '.join(error.messages)}")
    except BaseException:
        found.end_fit("It was not fitted: an error on the server. Fit it again.")
        raise
    else:
        found.end_fit(
            fitted["reason"],
            options=fitted["options"],
            best=fitted["best"],
            threshold=fitted["threshold"],
            packed=base64.b64decode(fitted["packed"]),
            report=fitted["report"],
            gains=fitted["gains"],
            is_on=fitted["gains"],
            fit=found.fit + 1,
            fitted_at=timezone.now(),
        )
        log.info("route_fitted", route=found.pk, gains=fitted["gains"])


def _computed(route: Route) -> dict[str, Any]:
    """What the child process found.

    Raises:
        FitFailed: there are too few rows, or reading them exceeds a limit.
        ValidationError: as `fit_later`.
    """
    if route.eval is None:
        raise FitFailed("its eval was deleted.")
    runs = route.runs_of(route.eval)
    task = {
        "task": "fit_route",
        "models": route.options,
        "prices": route.prices(),
        "source": runs[0].source,
        "margin": route.margin,
        "is_cascade": route.is_cascade,
    }
    limits = replace(sandbox.SandboxLimits.for_bytes(0), cpu_s=CPU_S)
    with ExitStack() as opened:
        files = {
            f"results_{at}": (_results(run, opened.enter_context(scratch())), "rb")
            for at, run in enumerate(runs)
        }
        try:
            found = sandbox.run(task, files, limits)
        except sandbox.LimitExceeded as error:
            raise FitFailed(f"a limit was exceeded: {error}.") from None
        except sandbox.Crashed:
            raise FitFailed("the results of the runs could not be read.") from None
    if "refused_fit" in found:
        raise FitFailed(found["refused_fit"])
    found["report"] |= {"runs": {run.model: run.pk for run in runs}}
    return found


def _results(run: EvalRun, out: IO[bytes]) -> IO[bytes]:
    """The file with the results of the first MAX_ROWS rows, one on each line."""
    bodies = run.items.order_by("number").values_list("body", flat=True)[:MAX_ROWS]
    with transaction.atomic():  # a cursor outside of one would first collect all rows
        for body in bodies.iterator(chunk_size=AT_ONCE):
            out.write(body.rstrip("\n").encode() + b"\n")
            if out.tell() > MAX_BYTES:
                raise FitFailed(f"the run {run.pk} has more than {MAX_BYTES >> 20} MiB of results.")
    out.flush()
    return out
