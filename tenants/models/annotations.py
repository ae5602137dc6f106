"""Tags and scores of requests: what members, and programs that evaluate answers, say of them.

A request is in the ledger, in `RefusedRequest`, or in both, so these refer to it by its id and
start instead of by a foreign key. They are deleted with it (`over`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, TypeVar

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models, transaction
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from tenants.errors import TooManyAnnotations
from tenants.models.accounts import Tenant, User
from tenants.models.usage.ledger import UsageEvent

MAX_WORD, MAX_COMMENT = 40, 500
MAX_TAGS, MAX_SCORES = 10, 20
"""Of one request."""
MAX_OF_TENANT = 200_000
"""Tags, and scores, of one tenant: the count that precedes each new one takes some 20 ms then."""
MAX_NUMBER = 1e9
WORD = re.compile(rf"[a-z0-9][a-z0-9_.:-]{{0,{MAX_WORD - 1}}}")
WORD_RULE = (
    f"Use 1 to {MAX_WORD} lowercase letters, digits and the characters . _ : -, with a letter or "
    "digit first."
)
is_word = RegexValidator(rf"\A{WORD.pattern}\Z", WORD_RULE)
A = TypeVar("A", bound="Annotation", covariant=True)


class ScoreSource(models.TextChoices):
    """Who gave a score: one of each may give one of the same name."""

    PERSON = "person"
    EVALUATOR = "evaluator"
    """A program, with an API key."""


class ScoreKind(models.TextChoices):
    NUMBER = "number"
    BOOLEAN = "boolean"
    CATEGORY = "category"


class AnnotationQuerySet(models.QuerySet[A]):
    def of(self, tenant: Tenant, request_ids: Collection[str]) -> Self:
        return self.filter(tenant=tenant, request_id__in=request_ids)

    def by_keys(self) -> Self:
        """Those that API keys made, or a person who is gone."""
        return self.filter(created_by=None)

    def over(self, before: datetime) -> Self:
        """Those of requests that started before this and are not in the ledger."""
        billed = UsageEvent.objects.filter(
            id=OuterRef("request_id"), started_at=OuterRef("started_at")
        )
        return self.filter(~Exists(billed), started_at__lt=before)

    def _put(self, most: int, found: dict[str, Any], **values: Any) -> A:
        """Create the row that `found` identifies, or change it.

        Raises:
            TooManyAnnotations: the request has `most`, or the tenant MAX_OF_TENANT.
        """
        tenant, things = found["tenant"], self.model._meta.verbose_name_plural
        with transaction.atomic():
            Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)  # serializes the count
            of_request = self.filter(tenant=tenant, request_id=found["request_id"])
            if not of_request.filter(**found).exists():
                if of_request.count() >= most:
                    raise TooManyAnnotations(
                        f"The request has {most} {things}, the maximum. Delete one first."
                    )
                of_tenant = self.filter(tenant=tenant).order_by()
                if of_tenant[:MAX_OF_TENANT].count() >= MAX_OF_TENANT:
                    raise TooManyAnnotations(
                        f"The tenant has {MAX_OF_TENANT:,} {things}, the maximum. Delete some "
                        "first."
                    )
            return self.update_or_create(**found, defaults=values)[0]


class Annotation(models.Model):
    """Something said of the request with this id, which began at `started_at`."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="+", db_index=False)
    request_id = models.CharField(max_length=64)
    started_at = models.DateTimeField(db_index=True)
    name = models.CharField(max_length=MAX_WORD, validators=[is_word])
    created_by = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.name} of {self.request_id}"


class RequestTagQuerySet(AnnotationQuerySet["RequestTag"]):
    def put(self, tenant: Tenant, id: str, started_at: datetime, by: User | None, name: str) -> Any:
        """Tag a request; nothing changes if it has the tag.

        Raises:
            ValidationError: the name is not a word.
            TooManyAnnotations: the request or the tenant has too many.
        """
        is_word(name)
        found = {"tenant": tenant, "request_id": id, "name": name}
        if known := self.filter(**found).first():
            return known
        return self._put(MAX_TAGS, found, started_at=started_at, created_by=by)


class RequestTag(Annotation):
    objects = RequestTagQuerySet.as_manager()

    class Meta:
        ordering = ["name"]
        verbose_name = "tag"
        constraints = [
            models.UniqueConstraint(fields=["tenant", "request_id", "name"], name="tag_once")
        ]


@dataclass(frozen=True, slots=True)
class ScoreValue:
    """The value of a score: a number, true or false, or a category."""

    kind: ScoreKind
    number: float | None
    category: str

    @classmethod
    def of(cls, value: object) -> Self:
        """Of a value as JSON has it.

        Raises:
            ValidationError: it is none, or a number or a text that is not allowed.
        """
        if isinstance(value, bool):
            return cls(ScoreKind.BOOLEAN, float(value), "")
        if isinstance(value, (int, float)):
            if not -MAX_NUMBER <= value <= MAX_NUMBER:  # also false for NaN
                raise ValidationError(f"A number must be from -{MAX_NUMBER:g} to {MAX_NUMBER:g}.")
            return cls(ScoreKind.NUMBER, float(value), "")
        if isinstance(value, str):
            is_word(value)
            return cls(ScoreKind.CATEGORY, None, value)
        raise ValidationError("Use a number, true, false or a category.")

    @classmethod
    def typed(cls, text: str) -> Self:
        """Of what a person typed: `true` and `false` are booleans, a text that reads as a number is
        one.

        Raises:
            ValidationError: see `of`.
        """
        if text in ("true", "false"):
            return cls.of(text == "true")
        try:
            return cls.of(float(text) if "_" not in text else text)
        except ValueError:
            return cls.of(text)


class RequestScoreQuerySet(AnnotationQuerySet["RequestScore"]):
    def by_keys(self) -> Self:
        return self.filter(source=ScoreSource.EVALUATOR)

    def put(
        self, tenant: Tenant, id: str, started_at: datetime, by: User | None, **given: Any
    ) -> RequestScore:
        """Score a request: `name`, `value` (a `ScoreValue`) and `comment`. Replaces the score
        of the same name and source. `by` is None for an API key.

        Raises:
            ValidationError: the name is not a word, or the comment too long.
            TooManyAnnotations: the request or the tenant has too many.
        """
        name, value, comment = given["name"], given["value"], given.get("comment", "")
        is_word(name)
        if len(comment) > MAX_COMMENT or "\0" in comment:
            raise ValidationError(
                f"The comment has {len(comment)} characters; at most {MAX_COMMENT} are allowed, "
                "none of them NUL."
            )
        source = ScoreSource.EVALUATOR if by is None else ScoreSource.PERSON
        found = {"tenant": tenant, "request_id": id, "name": name, "source": source}
        fields = {"kind": value.kind, "number": value.number, "category": value.category}
        return self._put(
            MAX_SCORES, found, started_at=started_at, created_by=by, comment=comment, **fields
        )


class RequestScore(Annotation):
    """`number` of a boolean is 1 or 0, so that a filter by number finds it; a category has none."""

    source = models.CharField(max_length=16, choices=ScoreSource)
    kind = models.CharField(max_length=16, choices=ScoreKind)
    number = models.FloatField(null=True)
    category = models.CharField(max_length=MAX_WORD, blank=True)
    comment = models.CharField(max_length=MAX_COMMENT, blank=True)

    objects = RequestScoreQuerySet.as_manager()

    class Meta:
        ordering = ["name", "source"]
        verbose_name = "score"
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "request_id", "name", "source"], name="score_once"
            ),
            models.CheckConstraint(
                condition=Q(kind="category", number__isnull=True)
                | Q(kind__in=("number", "boolean"), number__isnull=False, category=""),
                name="score_value",
            ),
        ]

    @property
    def value(self) -> float | bool | str:
        if self.kind == ScoreKind.BOOLEAN:
            return bool(self.number)
        return self.category if self.number is None else self.number

    @property
    def shown(self) -> str:
        """The value as text."""
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        return self.value if isinstance(self.value, str) else f"{self.value:.10g}"


def scores_of(tenant: Tenant, request_ids: Collection[str]) -> dict[str, list[RequestScore]]:
    """The scores of some requests, by their ids."""
    found = defaultdict(list)
    for score in RequestScore.objects.of(tenant, request_ids).select_related("created_by"):
        found[score.request_id].append(score)
    return dict(found)
