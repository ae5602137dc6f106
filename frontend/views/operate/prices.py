"""Token prices with their start times. Prices are added, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from frontend.formats import utc
from frontend.lists import id_in_url, older_than, page_of, words_of
from frontend.pages import operator_page, refusals_as_messages
from frontend.times import MinuteField
from inference.interfaces.directory import MICRO
from tenants.models import Adapter, BaseModel, Price
from tenants.models.usage.prices import MAX_PRICE, OF_BASE_MODELS, PriceQuerySet, Tier

CHOICES = {"": "In force and scheduled", "past": "Past", "all": "All"}
STATES = {"": ("in force", "scheduled"), "past": ("past",), "all": ()}
MAX_MODELS = 100
"""Base models that the form suggests."""


class PriceAmount(forms.DecimalField):
    """Units of the currency per million tokens; cleaned to whole micro-units."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            min_value=0,
            max_value=MAX_PRICE // MICRO,
            decimal_places=6,
            # `type=number` rounds, or rejects the decimal comma of some languages.
            widget=forms.TextInput({"inputmode": "decimal", "autocomplete": "off"}),
            **options,
        )

    def clean(self, value: Any) -> Any:
        units: Decimal | None = super().clean(value)
        return None if units is None else int(units * MICRO)


class PriceForm(forms.Form):
    """A new price of a base model or of one adapter."""

    of = forms.CharField(
        max_length=320,
        label="Price of",
        help_text="A base model, or an adapter as tenant/adapter.",
        widget=forms.TextInput({"list": "priced", "autocomplete": "off"}),
    )
    tier = forms.ChoiceField(
        choices=Tier,
        initial=Tier.STANDARD,
        required=False,
        label="For",
        help_text=(
            "Batches and overflow engines use the standard price if theirs is not set. Training: "
            "fine-tuning on a base model, by the prompt price alone."
        ),
    )
    prompt = PriceAmount(label="Prompt tokens", help_text="Prompt tokens not in the prefix cache.")
    cached_prompt = PriceAmount(label="Cached prompt tokens", help_text="At most the prompt price.")
    output = PriceAmount(label="Output tokens")
    starts_at = MinuteField(
        required=False,
        label="From (UTC)",
        help_text="Leave empty to start now. Earlier usage keeps its price.",
    )

    def clean_of(self) -> BaseModel | Adapter:
        name: str = self.cleaned_data["of"].strip()
        if base := BaseModel.objects.filter(name=name).first():
            return base
        slug, _, adapter = name.partition("/")
        found = Adapter.objects.filter(tenant__slug=slug, name=adapter).first()
        if found is None:
            raise ValidationError(f"There is no base model or adapter “{name}”.")
        return found

    def clean_tier(self) -> str:
        return self.cleaned_data["tier"] or Tier.STANDARD

    def clean_starts_at(self) -> datetime:
        now = timezone.now()
        at: datetime = self.cleaned_data["starts_at"] or now
        if at < now:
            raise ValidationError(f"{utc(at)} is in the past. Usage up to now is already billed.")
        return at

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = self.cleaned_data
        prompt, cached = given.get("prompt"), given.get("cached_prompt")
        if prompt is not None and cached is not None and cached > prompt:
            self.add_error("cached_prompt", "This is above the price of prompt tokens.")
        tier = given.get("tier")
        if isinstance(given.get("of"), Adapter) and tier in OF_BASE_MODELS:
            self.add_error("of", OF_BASE_MODELS[Tier(tier)])
        if tier == Tier.TRAINING:
            self._check_training(given)
        return given

    def _check_training(self, given: Mapping[str, Any]) -> None:
        for name in ("cached_prompt", "output"):
            if given.get(name):
                self.add_error(name, "Training has the prompt price alone: this must be 0.")

    def price(self) -> Price:
        """The price of a valid form, not stored yet."""
        given = dict(self.cleaned_data)
        of = given.pop("of")
        named = {"base_model": of} if isinstance(of, BaseModel) else {"adapter": of}
        return Price(**named, **given)

    def save(self) -> Price | None:
        """Store the price of a valid form; None, with an error, if there is one for that time."""
        price = self.price()
        try:
            with transaction.atomic():
                price.save()
        except IntegrityError:
            of = self.cleaned_data["of"]
            self.add_error("starts_at", f"{of} already has a price that starts at this time.")
            return None
        return price


@dataclass(frozen=True, slots=True)
class PlannedPrice:
    """A price to confirm, beside the one that it replaces (None: free until then). `fields` are its
    form's, to be sent again."""

    price: Price
    old: Price | None
    fields: PriceForm

    @classmethod
    def of(cls, form: PriceForm) -> PlannedPrice:
        """The price of a valid form."""
        price = form.price()
        return cls(price, price.preceding(), PriceForm(form.data, auto_id=False))

    @property
    def name(self) -> str:
        return str(self.price.adapter or self.price.base_model)

    @property
    def at_once(self) -> bool:
        """Whether it takes effect as soon as it is confirmed, and cannot be withdrawn."""
        return not self.fields.data.get("starts_at")

    @property
    def changes(self) -> list[tuple[str, int, int]]:
        """For each kind of tokens its name, the old price and the new one."""
        names = {"prompt": "Prompt", "cached_prompt": "Cached prompt", "output": "Output"}
        return [
            (title, getattr(self.old, name) if self.old else 0, getattr(self.price, name))
            for name, title in names.items()
        ]


@require_http_methods(["GET", "POST"])
@operator_page
def prices(request: HttpRequest) -> HttpResponse:
    """The list; POST shows what a price would change, and once `confirmed` sets it."""
    if request.method != "POST":
        return _list(request, PriceForm(initial={"of": request.GET.get("of", "")}))
    form = PriceForm(request.POST)
    if not form.is_valid():
        return _list(request, form)
    if "confirmed" not in request.POST:
        return _list(request, form, PlannedPrice.of(form))
    if (price := form.save()) is None:
        return _list(request, form)
    if price.starts_at > timezone.now():
        detail = f"It takes effect on {utc(price.starts_at)}, and can be withdrawn until then."
        messages.success(request, f"Price scheduled. {detail}")
    else:
        messages.success(request, "Price set. It is in force.")
    return redirect("operate_prices")


@require_POST
@operator_page
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    """Withdraw a price that is not in force yet."""
    price = get_object_or_404(Price, pk=pk)
    with refusals_as_messages(request):
        price.withdraw()
        messages.success(request, "Price withdrawn.")
    return redirect("operate_prices")


def _list(
    request: HttpRequest, form: PriceForm, planned: PlannedPrice | None = None
) -> HttpResponse:
    words, state = words_of(request), request.GET.get("state", "")
    state = state if state in STATES else ""
    found = _after(_narrowed(words, state), id_in_url(request, "after"))
    rows, last = page_of(found.select_related("base_model", "adapter__tenant"))
    context = {
        "prices": rows,
        "last": last,
        "words": words,
        "state": state,
        "states": CHOICES,
        "filtered": bool(words or state == "past"),
        "form": form,
        "planned": planned,
        "base_models": list(BaseModel.objects.values_list("name", flat=True)[:MAX_MODELS]),
    }
    return render(request, "operate/prices.html", context, status=422 if form.errors else 200)


def _narrowed(words: str, state: str) -> PriceQuerySet:
    """All prices, latest first."""
    found = Price.objects.at(timezone.now(), *STATES[state]).order_by("-starts_at", "-id")
    if words:
        slug, _, adapter = words.partition("/")
        whole = Q(adapter__tenant__slug=slug, adapter__name=adapter)
        part = Q(adapter__name__icontains=words) | Q(adapter__tenant__slug__icontains=words)
        found = found.filter(Q(base_model__name__icontains=words) | part | whole)
    return found


def _after(found: PriceQuerySet, after: int | None) -> PriceQuerySet:
    """The prices after the one with this id."""
    last = Price.objects.filter(pk=after).first() if after is not None else None
    if last is None:
        return found
    return older_than(found, last, "starts_at")
