"""The time zone of pages, and form fields for days and times in UTC.

The fields are limited to 2000-2200, so that adding or subtracting some days never overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from tenants.api.openai.views import EARLIEST, LATEST

ZONE_COOKIE = "zone"
"""Set by `static/js/console.js`: the browser's time zone, or `UTC` if the user prefers that."""


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


class LocalTime:
    """Middleware: pages show times in the reader's time zone, the API in UTC."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        name = request.COOKIES.get(ZONE_COOKIE, "")
        local = name in _zones() and not request.path.startswith("/api/")
        with timezone.override(ZoneInfo(name) if local else UTC):
            return self._get_response(request)


class Day(forms.DateField):
    """A day in UTC; cleaned to a date."""

    default_validators = [MinValueValidator(EARLIEST.date()), MaxValueValidator(LATEST.date())]

    def __init__(self, **options: Any) -> None:
        super().__init__(widget=forms.DateInput({"type": "date"}), **options)


class MinuteField(forms.DateTimeField):
    """A date and time in UTC, to the minute: a URL with it means the same to everybody."""

    default_validators = [MinValueValidator(EARLIEST), MaxValueValidator(LATEST)]

    def __init__(self, **options: Any) -> None:
        widget = forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
        super().__init__(widget=widget, **options)

    def to_python(self, value: Any) -> datetime | None:
        with timezone.override(UTC):
            return super().to_python(value)

    def prepare_value(self, value: Any) -> Any:
        with timezone.override(UTC):
            return super().prepare_value(value)


def midnight(day: date) -> datetime:
    """When the day begins."""
    return datetime.combine(day, time(), UTC)
