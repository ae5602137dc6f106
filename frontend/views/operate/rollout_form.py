"""The plan of a new rollout, as an operator writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError

from tenants.models import BaseModel, PoolRevision, Rollout, Standing
from tenants.models.fleet.rollouts import STEPS, check_steps

if TYPE_CHECKING:
    RolloutFormBase = forms.ModelForm[Rollout]
else:
    RolloutFormBase = forms.ModelForm


class RolloutForm(RolloutFormBase):
    """The plan of a new rollout."""

    revision = forms.ModelChoiceField(PoolRevision.objects.none(), empty_label=None)
    steps = forms.CharField(
        label="Weights in percent",
        initial=", ".join(map(str, STEPS)),
        help_text="Shares of tenants, step by step. The last is 100.",
        widget=forms.TextInput({"autocomplete": "off", "inputmode": "numeric"}),
    )

    class Meta:
        model = Rollout
        fields = [
            "revision", "steps", "step_s", "min_requests", "max_error_percent", "max_ttft_ratio",
            "needs_isolation",
        ]  # fmt: skip
        labels = {
            "step_s": "Seconds at each weight",
            "min_requests": "Requests at each weight",
            "max_error_percent": "Allowed increase of errors, in percent",
            "max_ttft_ratio": "Allowed increase of TTFT, as a factor",
            "needs_isolation": "Check isolation at each weight",
        }

    def __init__(self, base_model: BaseModel, data: Any = None) -> None:
        super().__init__(data)
        revision = self.fields["revision"]
        assert isinstance(revision, forms.ModelChoiceField)
        revision.queryset = base_model.revisions.exclude(standing=Standing.SERVING)

    def clean_steps(self) -> list[int]:
        words: list[str] = self.cleaned_data["steps"].replace(",", " ").split()
        if not all(word.isdecimal() and len(word) <= 3 for word in words):
            raise ValidationError("Enter whole numbers separated by commas.")
        steps = [int(word) for word in words]
        check_steps(steps)
        return steps
