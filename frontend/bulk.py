"""The same done to several rows of a list, each by itself: one that may not be is told of, and the
others are done all the same."""

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

MAX_TOLD = 3
"""Rows of which it is told why they were not done."""


@dataclass(frozen=True, slots=True)
class Action:
    """What can be done to the chosen rows, after a dialog of this title and text: a POST of their
    ids to `url`. `components/bulk.html` renders it."""

    verb: str
    title: str
    text: str
    url: str = ""

    def of(self, view: str, *args: str) -> Action:
        """As it is on a page, where this view does it."""
        return replace(self, url=reverse(view, args=args))


def act(request: HttpRequest, one: Callable[[str], None], things: str, done: str) -> None:
    """Do it to each chosen row, and tell on the next page of how many that was.

    `one` takes a row's id. `things` is what a row is, and rows are
    ("key,keys"), `done` is what they are now.
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
            refused.append(f"A {word} is not there any longer, or not yours to change.")
    if count := len(ids) - len(refused):
        told = f"1 {word} is" if count == 1 else f"{count} {words} are"
        messages.success(request, f"{told} {done}.")
    for message in dict.fromkeys(refused[:MAX_TOLD]):
        messages.error(request, message)
    if not ids:
        messages.error(request, f"No {word} was chosen.")


def number(id: str) -> int:
    """A row's id.

    Raises:
        Http404: it is none.
    """
    if not id.isdecimal() or len(id) > 18:
        raise Http404
    return int(id)
