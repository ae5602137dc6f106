"""Renders the documents in `docs/` as pages of the console, which link to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from django.conf import settings
from django.templatetags.static import static
from django.urls import reverse
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import slugify
from markdown_it import MarkdownIt
from markdown_it.token import Token

GROUPS = {
    "Use": (
        "quick-start",
        "api",
        "clients",
        "adapters",
        "roll-out",
        "fine-tuning",
        "evals",
        "keys-and-limits",
        "bill",
        "content",
        "webhooks",
        "glossary",
    ),
    "Operate": (
        "is-it-for-me",
        "operate",
        "engines",
        "accounts",
        "deploy",
        "observe",
        "security",
    ),
    "How it works": ("limits-and-bills", "scale", "sizing", "load", "benchmarks", "gpu", "develop"),
}
"""Names of the files without `.md`, grouped by purpose."""
INDEX = "README"
BY_KEYBOARD = {
    "<pre>": '<pre tabindex="0">',
    "<table>": '<div class="table-wrap" tabindex="0" role="region" aria-label="Table"><table>',
    "</table>": "</table></div>",
}
"""Makes what scrolls sideways scrollable by keyboard. Only the renderer writes these exact tags."""
PICTURE = re.compile(r'src="images/([\w.-]+)"')
ANCHOR = re.compile(r'<\w+ id="([\w-]+)"')
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")  # HTML: the files are our own


@dataclass(frozen=True, slots=True)
class Document:
    """A rendered file; `anchors` are the ids that links may point to."""

    name: str
    title: str
    text: str
    anchors: frozenset[str]

    @property
    def html(self) -> SafeString:
        """The text, with pictures at the URLs where they are served."""
        return mark_safe(PICTURE.sub(_served, self.text))


def names() -> tuple[str, ...]:
    return (INDEX, *(name for group in GROUPS.values() for name in group))


@cache
def document(name: str) -> Document:
    """The document of this name. Raises KeyError if there is none."""
    if name not in names():
        raise KeyError(name)
    tokens = MARKDOWN.parse((settings.DOCUMENTS / f"{name}.md").read_text())
    title = _anchored(tokens)
    for token in tokens:
        for one in (token, *(token.children or ())):
            _adapt(one)
    text = MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})
    for tag, reached in BY_KEYBOARD.items():
        text = text.replace(tag, reached)
    return Document(name, title, text, frozenset(ANCHOR.findall(text)))


def address(place: str = INDEX) -> str:
    """The address of `name` or `name#heading`. Raises KeyError if there is no such place."""
    name, _, anchor = place.partition("#")
    if name not in names() or (anchor and anchor not in document(name).anchors):
        raise KeyError(place)
    url = reverse("documents") if name == INDEX else reverse("documents-one", args=[name])
    return f"{url}#{anchor}" if anchor else url


def _anchored(tokens: Sequence[Token]) -> str:
    """Give each heading an id made from its text, as code hosts do; returns the first one's text,
    the title."""
    texts = []
    for token, inner in pairwise(tokens):
        if token.type == "heading_open":
            texts.append("".join(child.content for child in inner.children or ()))
            token.attrSet("id", slugify(texts[-1]))
    return texts[0]


def _adapt(token: Token) -> None:
    """Link to the console's URLs; replace inline styles, which the policy forbids, by classes."""
    if token.type == "link_open":
        _lead(token)
    elif token.type == "image":
        token.attrSet("loading", "lazy")
    elif str(token.attrs.pop("style", "")).endswith("right"):
        token.attrSet("class", "num")


def _served(picture: re.Match[str]) -> str:
    return f'src="{static(f"documents/{picture[1]}")}"'


def _lead(token: Token) -> None:
    href = str(token.attrs["href"])
    name, hash_sign, anchor = href.partition("#")
    if name.endswith(".md") and name.removesuffix(".md") in names():
        token.attrSet("href", address(name.removesuffix(".md")) + hash_sign + anchor)
    elif href.startswith(".."):  # files outside docs/ are not served
        token.attrs.pop("href")


def contents() -> list[tuple[str, list[dict[str, Any]]]]:
    """The groups, each with its documents."""
    return [
        (group, [{"name": one, "title": document(one).title, "url": address(one)} for one in names])
        for group, names in GROUPS.items()
    ]
