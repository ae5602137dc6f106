"""How many engines some traffic needs, and what it costs: the page of `inference.sizing`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from frontend.pages import operator_page
from inference.sizing import (
    BYTES,
    DEVICES,
    GB,
    MODELS,
    CannotSize,
    Device,
    EngineSpeed,
    ModelSize,
    Traffic,
    break_even,
    described,
    plan,
)
from tenants.busiest_hour import busiest_hour
from tenants.models import Adapter

MAX_CONFIG = 20_000
"""Characters of a `config.json`; that of a large model has 2,000."""
MAX_SPEED = 1_000
MAX_ADAPTERS = 20_000
"""So many take a third of a second."""
MOST = 1e6
TYPES = [(name, name) for name in BYTES]


class SizingForm(forms.Form):
    """A model, a device and some traffic."""

    model = forms.ChoiceField(choices=[(name, name) for name in MODELS], label="Model")
    config = forms.CharField(
        required=False,
        max_length=MAX_CONFIG,
        label="Or the config.json of another one",
        widget=forms.Textarea({"rows": 3, "spellcheck": "false"}),
    )
    weights = forms.ChoiceField(choices=TYPES, initial="bfloat16", label="Type of its weights")
    cache = forms.ChoiceField(choices=TYPES, initial="bfloat16", label="Type of the cache")
    device = forms.ChoiceField(
        choices=[
            (name, f"{name.upper()}, {one.memory / GB:.0f} GB") for name, one in DEVICES.items()
        ],
        initial="h100",
    )
    speed = forms.CharField(
        required=False,
        max_length=MAX_SPEED,
        label="Or what manage.py calibrate measured",
        widget=forms.Textarea({"rows": 2, "spellcheck": "false"}),
    )
    price = forms.FloatField(
        min_value=0, max_value=MOST, initial=3, label="Price of a device for an hour"
    )
    requests = forms.FloatField(min_value=0, max_value=MOST, label="Requests a second, at the peak")
    prompt = forms.FloatField(min_value=1, max_value=MOST, label="Tokens of a prompt, on average")
    output = forms.FloatField(min_value=1, max_value=MOST, label="Tokens of an answer, on average")
    cached = forms.FloatField(
        min_value=0, max_value=100, label="Prompt tokens in the prefix cache (%)"
    )
    adapters = forms.IntegerField(min_value=0, max_value=MAX_ADAPTERS)
    slots = forms.IntegerField(
        min_value=0, max_value=10_000, initial=64, label="Slots for adapters in an engine"
    )
    rank = forms.IntegerField(min_value=1, max_value=1024, initial=16, label="Rank of the adapters")
    load = forms.IntegerField(
        min_value=1, max_value=99, initial=70, label="Part of an engine that is used (%)"
    )
    cloud_prompt = forms.FloatField(
        required=False, min_value=0, max_value=MOST,
        label="Price of a service for a million prompt tokens",
        help_text="To see from how many requests on one engine costs less.",
    )  # fmt: skip
    cloud_output = forms.FloatField(
        required=False, min_value=0, max_value=MOST,
        label="Price of a service for a million output tokens",
    )  # fmt: skip

    def clean_config(self) -> ModelSize | None:
        given = self.cleaned_data["config"]
        if not given.strip():
            return None
        try:
            fields = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise ValidationError("This is not JSON.") from error
        inner = fields.get("text_config", fields) if isinstance(fields, dict) else fields
        if not isinstance(inner, dict):
            raise ValidationError("This is not the config.json of a model.")
        try:
            return ModelSize.of(inner)
        except CannotSize as error:
            raise ValidationError(capitalised(error)) from error

    def clean_speed(self) -> EngineSpeed | None:
        given = self.cleaned_data["speed"]
        try:
            return EngineSpeed.read(given) if given.strip() else None
        except CannotSize as error:
            raise ValidationError(capitalised(error)) from error

    def rows(self) -> list[tuple[str, str]]:
        """The plan, in words.

        Raises:
            CannotSize: the model does not fit.
        """
        given = self.cleaned_data
        model: ModelSize = given["config"] or MODELS[given["model"]]
        device: Device = replace(DEVICES[given["device"]], price=given["price"])
        traffic = Traffic(
            requests_s=given["requests"],
            prompt=given["prompt"],
            output=given["output"],
            cached=given["cached"] / 100,
            adapters=given["adapters"],
            slots=min(given["slots"], given["adapters"]),
            rank=given["rank"],
            load=given["load"] / 100,
        )
        speed: EngineSpeed | None = given["speed"]
        found = plan(
            model, device, traffic, given["weights"], given["cache"], longest=256, speed=speed
        )
        prices = given["cloud_prompt"], given["cloud_output"]
        pays = None
        if any(price is not None for price in prices):
            pays = break_even(found, device, traffic, *(price or 0.0 for price in prices))
        return described(model, device, traffic, found, pays, speed)


@require_http_methods(["GET", "POST"])
@operator_page
def sizing(request: HttpRequest) -> HttpResponse:
    """The form, and the plan of what was filled in. POST changes nothing."""
    rows: list[tuple[str, str]] = []
    if request.method == "POST":
        form = SizingForm(request.POST)
        if form.is_valid():
            try:
                rows = form.rows()
            except CannotSize as error:
                form.add_error(None, capitalised(error))
        return _page(request, form, {"rows": rows}, 422 if form.errors else 200)
    initial: dict[str, Any] = {
        "requests": 1, "prompt": 1000, "output": 200, "cached": 0,
        "adapters": min(Adapter.objects.count(), MAX_ADAPTERS),
    }  # fmt: skip
    if (busiest := busiest_hour()) is not None:
        initial |= {
            "requests": round(busiest.requests, 3),
            "prompt": round(busiest.prompt),
            "output": max(1, round(busiest.output)),
            "cached": round(100 * busiest.cached),
        }
    return _page(request, SizingForm(initial=initial), {"busiest": busiest}, 200)


def capitalised(error: CannotSize) -> str:
    """The error as a sentence."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def _page(
    request: HttpRequest, form: SizingForm, context: dict[str, Any], status: int
) -> HttpResponse:
    return render(request, "operate/sizing.html", context | {"form": form}, status=status)
