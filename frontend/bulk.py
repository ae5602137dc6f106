"""Bulk actions: the same change to several rows of a list. Each row is changed independently of the
others, and refusals are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.urls import reverse

from frontend.lists import PAGE
from inference.errors import InferenceError
from tenants.errors import Refused

MAX_EXPLAINED = 3
"""Maximum number of refusals that are explained on the next page."""


@dataclass(frozen=True, slots=True)
class Action:
    """A bulk action: after a dialog with this title and text, the chosen rows' ids are posted to
    `url`. `danger`: it cannot be undone. Rendered by `components/bulk.html`."""

    verb: str
    title: str
    text: str
    url: str = ""
    danger: bool = True

    def of(self, view: str, *args: str) -> Action:
        """A copy with the URL of this view."""
        return replace(self, url=reverse(view, args=args))


def act(request: HttpRequest, one: Callable[[str], None], things: str, done: str) -> None:
    """Apply `one` to each chosen row, and report on the next page how many were changed.

    `one` is called with a row's id. `things` is the noun for rows in singular and plural
    ("key,keys"), `done` the participle in the report ("revoked").
    """
    word, words = things.split(",")
    ids = list(dict.fromkeys(request.POST.getlist("row")))[:PAGE]
    refused = []
    for id in ids:
        try:
            one(id)
        except (Refused, InferenceError) as error:
            refused.append(error.message)
        except (Http404, PermissionDenied):
            refused.append(f"One {word} no longer exists, or you may not change it.")
    if count := len(ids) - len(refused):
        subject = f"1 {word} is" if count == 1 else f"{count} {words} are"
        messages.success(request, f"{subject} {done}.")
    for message in dict.fromkeys(refused[:MAX_EXPLAINED]):
        messages.error(request, message)
    if not ids:
        messages.error(request, f"No {word} was selected.")


def number(id: str) -> int:
    """Parse a row's id.

    Raises:
        Http404: it is not a valid id.
    """
    if not id.isdecimal() or len(id) > 18:
        raise Http404
    return int(id)
