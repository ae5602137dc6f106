"""Members' votes from comparing models on a prompt set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.utils import timezone

from tenants.models.accounts import Membership
from tenants.models.saved.prompts import PromptSet

MAX_RUNS = 200
"""At most how many runs of one set are kept; a new one replaces the oldest."""
MAX_COMPARED = 4
"""Number of panes in the playground."""
MAX_MODEL = 200
TIE = "tie"
CHOICES = ("A", "B", "C", "D", TIE, "")
"""A pane's letter, a tie, or no vote yet."""


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a model: `wins` and `ties` among the prompts `voted` on, over all its runs."""

    model: str
    wins: int
    ties: int
    voted: int
    runs: int

    @property
    def share(self) -> float:
        """The share of the prompts voted on in which it was preferred."""
        return self.wins / self.voted


class SetRunQuerySet(models.QuerySet["SetRun"]):
    def record(self, prompt_set: PromptSet, member: Membership, key: UUID, run: Run) -> None:
        """Store a run's votes so far; deletes the oldest runs beyond MAX_RUNS of the set.

        Raises:
            PromptSet.DoesNotExist: it was deleted meanwhile.
        """
        fields = {"compared": run.compared, "choices": run.choices, "at": timezone.now()}
        with transaction.atomic():
            # The set's row is the lock: it serializes runs that begin at once.
            PromptSet.objects.select_for_update().get(pk=prompt_set.pk)
            mine = self.filter(prompt_set=prompt_set)
            mine.update_or_create(prompt_set=prompt_set, member=member, key=key, defaults=fields)
            newest = mine.order_by("-at", "-pk").values("pk")[:MAX_RUNS]
            mine.exclude(pk__in=list(newest.values_list("pk", flat=True))).delete()

    def scores(self) -> list[Score]:
        """The score of each model in these runs, the most often preferred first."""
        return scores(Run(one.compared, one.choices) for one in self)


@dataclass(frozen=True, slots=True)
class Run:
    """`compared` are the models by pane, `choices` has one of CHOICES for each prompt."""

    compared: list[str]
    choices: list[str]


def scores(runs: Iterable[Run]) -> list[Score]:
    """Add runs up. A model that is in two panes of a run competes with itself there, so that run
    does not count for it."""
    wins, ties, voted, ran = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for run in runs:
        cast = Counter(choice for choice in run.choices if choice)
        for letter, model in _alone(run.compared):
            wins[model] += cast[letter]
            ties[model] += cast[TIE]
            voted[model] += cast.total()
            ran[model] += 1
    found = [Score(one, wins[one], ties[one], count, ran[one]) for one, count in voted.items()]
    return sorted((one for one in found if one.voted), key=_rank)


def _alone(compared: list[str]) -> Iterator[tuple[str, str]]:
    for letter, model in zip(CHOICES, compared, strict=False):
        if compared.count(model) == 1:
            yield letter, model


def _rank(one: Score) -> tuple[float, str]:
    return -one.share, one.model


class SetRun(models.Model):
    """One run of a prompt set over some models; deleted with the set, and with the membership."""

    prompt_set = models.ForeignKey(PromptSet, models.CASCADE, related_name="runs")
    member = models.ForeignKey(Membership, models.CASCADE, related_name="+")
    key = models.UUIDField()
    """The page's identifier of the run, under which it stores further votes."""
    compared = ArrayField(models.CharField(max_length=MAX_MODEL))
    """Models by pane, adapters with the number of their version."""
    choices = ArrayField(models.CharField(max_length=3, blank=True))
    at = models.DateTimeField()

    objects = SetRunQuerySet.as_manager()

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(
                fields=["prompt_set", "member", "key"], name="set_run_once_per_key"
            )
        ]

    def __str__(self) -> str:
        return f"run {self.pk} of set {self.prompt_set_id}"
