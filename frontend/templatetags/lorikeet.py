"""How figures are shown, and the console's components."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.timesince import timesince, timeuntil

from inference.grants import PICO

register = template.Library()

NARROW_SPACE = "\u202f"


@register.filter
def number(value: int | None) -> str:
    """A count with its thousands apart."""
    return "\u2013" if value is None else f"{value:,}".replace(",", NARROW_SPACE)


@register.filter
def money(pico: Any) -> str:
    """A cost in pico-units: two places, more where it is under a cent."""
    units = int(pico or 0) / PICO
    if units == 0:
        return "0.00"
    return f"{units:,.2f}".replace(",", NARROW_SPACE) if units >= 0.01 else f"{units:.6f}"


@register.filter
def price(micro: int) -> str:
    """Micro-units per million tokens as units, exact, with at least two places."""
    whole, _, part = f"{micro / Decimal(10**6):f}".partition(".")
    return f"{int(whole):,}".replace(",", NARROW_SPACE) + "." + part.rstrip("0").ljust(2, "0")


@register.filter
def percent(share: float | None) -> str:
    """A share from 0 to 1."""
    return "\u2013" if share is None else f"{share:.0%}"


@register.filter
def duration(seconds: float | None) -> str:
    """A time that something took, to about three figures."""
    if seconds is None:
        return "\u2013"
    if seconds < 0.9995:
        return f"{seconds * 1000:.2f} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"


@register.filter
def ago(at: datetime | None) -> SafeString | str:
    """A moment as people say it; the exact one is in the title."""
    if at is None:
        return "never"
    past = at <= timezone.now()
    # The largest part alone, without timesince's non-breaking spaces.
    said = (timesince(at) if past else timeuntil(at)).split(",")[0].replace("\xa0", " ")
    text = (f"{said} ago" if past else f"in {said}") if said != "0 minutes" else "just now"
    return format_html('<time datetime="{}">{}</time>', at.isoformat(), text)


STATES = {
    "ready": "ok",
    "live": "ok",
    "active": "ok",
    "exact": "ok",
    "isolated": "ok",
    "leaks": "bad",
    "not told": "warn",
    "served": "ok",
    "shared": "ok",
    "in force": "ok",
    "answered": "ok",
    "to come": "busy",
    "draining": "warn",
    "degraded": "warn",
    "refusing": "bad",
    "differs": "bad",
    "not served": "bad",
    "uploading": "busy",
    "validating": "busy",
    "probing": "busy",
    "expires soon": "warn",
    "cut by length": "warn",
    "rejected": "bad",
    "revoked": "bad",
    "expired": "bad",
    "suspended": "bad",
    "failed": "bad",
}


@register.simple_tag
def pill(state: str) -> SafeString:
    """A state: its colour says the same as its word."""
    return format_html(
        '<span class="pill {}">{}</span>', STATES.get(state.lower(), ""), state.capitalize()
    )


@register.inclusion_tag("components/meter.html")
def meter(label: str, used: int, limit: int, text: str) -> dict[str, Any]:
    """How much of a limit is used; its colour turns as the limit comes near."""
    near = {"low": limit * 8 // 10, "high": limit * 95 // 100}
    return {"label": label, "used": used, "limit": limit, "text": text} | near


@register.simple_block_tag
def copyable(content: str) -> SafeString:
    """Code to copy, exactly as it stands between the tags."""
    return format_html(
        '<copy-button class="copy"><pre tabindex="0">{}</pre>'
        '<button class="button plain" type="button">Copy</button></copy-button>',
        content,
    )


@register.simple_tag
def stat(title: str, value: object, note: str = "") -> SafeString:
    """One figure of a row of them (`<dl class="stats">`); what needs more markup writes it out."""
    below = format_html('<dd class="note">{}</dd>', note) if note else ""
    return format_html('<div class="stat"><dt>{}</dt><dd>{}</dd>{}</div>', title, value, below)


@register.simple_block_tag
def table(content: str, label: str) -> SafeString:
    """A table that scrolls sideways by itself, also by keyboard."""
    return format_html(
        '<div class="table-wrap" tabindex="0" role="region" aria-label="{}">'
        "<table>{}</table></div>",
        label,
        content,
    )


@register.simple_tag
def nothing(text: str, action: str = "", url: str = "?") -> SafeString:
    """What stands where a list is empty: one sentence, one action."""
    button = format_html('<a class="button" href="{}">{}</a>', url, action) if action else ""
    return format_html('<div class="empty"><p>{}</p>{}</div>', text, button)


@register.simple_block_tag
def dialog(content: str, id: str, title: str, opened: object = False) -> SafeString:
    """A modal dialog; a button with `data-opens` shows it, one with `data-closes` in it ends it."""
    return format_html(
        '<dialog id="{id}" aria-labelledby="{id}-title"{opened}>'
        '<div class="body"><h2 id="{id}-title">{title}</h2>{content}</div></dialog>',
        id=id,
        title=title,
        opened=mark_safe(" open") if opened else "",
        content=content,
    )
