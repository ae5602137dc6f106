"""Form fields for days and times in UTC, limited to 2000-2200, so that adding or subtracting some
days never overflows."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

from django import forms
from django.core.validators import MaxValueValidator, MinValueValidator

from tenants.api.openai.views import EARLIEST, LATEST


class Day(forms.DateField):
    """A day in UTC; cleaned to a date."""

    default_validators = [MinValueValidator(EARLIEST.date()), MaxValueValidator(LATEST.date())]

    def __init__(self, **options: Any) -> None:
        super().__init__(widget=forms.DateInput({"type": "date"}), **options)


class Moment(forms.DateTimeField):
    """A date and time in UTC, to the minute."""

    default_validators = [MinValueValidator(EARLIEST), MaxValueValidator(LATEST)]

    def __init__(self, **options: Any) -> None:
        widget = forms.DateTimeInput({"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
        super().__init__(widget=widget, **options)


def midnight(day: date) -> datetime:
    """When the day begins."""
    return datetime.combine(day, time(), UTC)
