"""The installation's traffic in its busiest hour, for sizing it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from inference.gateway.measuring.measures import COMPLETED
from tenants.models import TotalHour

LOOKBACK = timedelta(days=7)
HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class BusiestHour:
    """Answered requests: how many a second, the tokens of a prompt and of an answer, on average,
    and the share of prompts' tokens that the prefix cache held."""

    requests: float
    prompt: float
    output: float
    cached: float


def busiest_hour() -> BusiestHour | None:
    """The hour of the last 7 days with the most tokens; None if nothing was answered in them."""
    answered = TotalHour.objects.filter(
        tenant=None, outcome=COMPLETED, at__gte=timezone.now() - LOOKBACK
    )
    hours = [one for one in answered.figures("at", times=()) if one["output_tokens"]]
    found = max(hours, key=lambda one: one["prompt_tokens"] + one["output_tokens"], default=None)
    if found is None:
        return None
    requests, prompt = int(found["requests"]), int(found["prompt_tokens"])
    return BusiestHour(
        requests=requests / HOUR_S,
        prompt=prompt / requests,
        output=int(found["output_tokens"]) / requests,
        cached=int(found["cached_tokens"]) / prompt if prompt else 0.0,
    )
