"""The console's components, and its formats of figures and times (`frontend.formats`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from django import template
from django.forms import Form
from django.template import Context
from django.template.defaulttags import CsrfTokenNode
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString, mark_safe

from frontend import documents, formats
from frontend.causes import cause
from frontend.lists import Column, address
from frontend.live.topics import TOPICS
from frontend.sign_in import passkeys
from frontend.sign_in.devices import device
from frontend.sign_in.wording import reworded
from tenants.models import User
from tenants.sizes import size

register = template.Library()

for _form in (
    formats.number,
    formats.money,
    formats.cents,
    formats.millionths,
    formats.aligned_rate,
    formats.signed_money,
    formats.exact_money,
    formats.price,
    formats.percent,
    formats.points,
    formats.score,
    formats.signed_score,
    formats.rate,
    size,
    formats.duration,
    formats.seconds,
    formats.day,
    formats.month,
    formats.moment,
    formats.second,
    formats.lately,
    formats.clock,
    formats.ago,
):
    register.filter(_form)
register.filter(cause)
register.filter(device)


@register.filter(is_safe=True)
def sentence_case(text: str) -> str:
    """Allauth's titles as the console writes its own: "Change Password" is "Change password"."""
    return re.sub(r"(?<=\w[ -])[A-Z](?=[a-z]+\b)", lambda letter: letter[0].lower(), text)


register.filter(reworded, is_safe=True)


@register.filter
def with_reworded_labels(form: Form) -> Form:
    """One of allauth's forms, with labels as the console writes its own, and no placeholders, which
    repeat the labels."""
    for field in form:
        # A validated form has copied the labels of its fields already.
        field.label = sentence_case(reworded(str(field.label)))
        field.field.widget.attrs.pop("placeholder", None)
    return form


@register.filter
def engine_state(engine: Mapping[str, Any]) -> str:
    """What an engine that gateways report does, as a state."""
    if engine["draining"]:
        return "draining"
    return "asleep" if engine["asleep"] else "active"


STATES = {
    "ready": "ok",
    "live": "ok",
    "active": "ok",
    "exact": "ok",
    "isolated": "ok",
    "leaks": "bad",
    "not checked": "warn",
    "served": "ok",
    "shared": "ok",
    "in force": "ok",
    "answered": "ok",
    "on": "ok",
    "being fitted": "busy",
    "delivered": "ok",
    "gone": "warn",
    "scheduled": "busy",
    "draining": "warn",
    "asleep": "",
    "overflow": "warn",
    "prefill": "ok",
    "decode": "ok",
    "allowed": "warn",
    "degraded": "warn",
    "refusing": "bad",
    "differs": "bad",
    "not served": "bad",
    "uploading": "busy",
    "validating": "busy",
    "validating files": "busy",
    "succeeded": "ok",
    "probing": "busy",
    "expires soon": "warn",
    "cut by length": "warn",
    "rejected": "bad",
    "passed": "ok",
    "serving": "ok",
    "waiting": "busy",
    "withdrawn": "bad",
    "running": "busy",
    "paused": "warn",
    "finished": "ok",
    "aborted": "warn",
    "rolled back": "bad",
    "promoted": "ok",
    "inconclusive": "warn",
    "required": "ok",
    "raised": "bad",
    "quiet": "ok",
    "revoked": "bad",
    "expired": "bad",
    "suspended": "bad",
    "being deleted": "bad",
    "failed": "bad",
    "completed": "ok",
    "in progress": "busy",
    "finalizing": "busy",
    "being written": "busy",
    "cancelling": "warn",
    "queued": "busy",
    "canceled": "warn",
    "errored": "warn",
    "regression": "bad",
    "improvement": "ok",
}


@register.simple_tag(takes_context=True)
def live(
    context: Context,
    topic: str,
    query: str = "",
    *,
    tenant: str = "",
    fingerprint: str = "",
    **given: str,
) -> SafeString:
    """The attributes of a <live-part> that follows the topic: in the page's tenant, else in
    `tenant`, else in the whole installation. It is fetched with `given`, or `query`, as its
    query string; a part with a `fingerprint` has no URL of its own: its page is fetched."""
    caller = context.get("caller")
    tenant = caller.tenant.slug if caller else tenant
    found = format_html('topic="{}" tenant="{}" every="{}"', topic, tenant, TOPICS[topic].every_s)
    if fingerprint:
        return found + format_html(' seen="{}"', fingerprint)
    src = reverse(f"live-{topic}", args=[tenant]) if caller else reverse(f"operate_live-{topic}")
    query = query or urlencode({name: value for name, value in given.items() if value})
    return found + format_html(' src="{}"', f"{src}?{query}" if query else src)


@register.simple_tag(takes_context=True)
def passkeys_possible(context: Context) -> bool:
    """Whether browsers offer passkeys at this page's address."""
    return passkeys.are_possible(context["request"])


@register.simple_tag
def lacks_operator() -> bool:
    """Whether nobody can sign in who could let others in."""
    return not User.operators().exists()


@register.simple_tag
def icon(name: str) -> SafeString:
    """One of the vendored icons, as decoration: the text beside it says what it is."""
    sprite = static("vendor/icons.svg")
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"/></svg>', sprite, name
    )


@register.simple_tag
def learn(place: str) -> SafeString:
    """A link to a place in the documentation, `name` or `name#heading`, in a tab of its own."""
    return format_html(
        '<a class="learn" href="{}" target="_blank" rel="noopener">Learn more</a>',
        documents.address(place),
    )


@register.simple_tag
def pill(state: str) -> SafeString:
    """A state as a coloured label."""
    return format_html(
        '<span class="pill {}">{}</span>', STATES.get(state.lower(), ""), state.capitalize()
    )


@register.inclusion_tag("components/meter.html")
def meter(label: str, used: int, limit: int, text: str) -> dict[str, Any]:
    """A bar for the used share of a limit, which changes colour near the limit."""
    near = {"low": limit * 8 // 10, "high": limit * 95 // 100}
    return {"label": label, "used": used, "limit": limit, "text": text} | near


@register.simple_block_tag
def copyable(content: str, id: str = "") -> SafeString:
    """Code with a copy button, exactly as between the tags."""
    return format_html(
        '<copy-button class="copy"><pre tabindex="0"{}>{}</pre>'
        '<button class="button plain" type="button">Copy</button></copy-button>',
        format_html(' id="{}"', id) if id else "",
        content,
    )


@register.simple_tag
def stat(title: str, value: object, note: str = "") -> SafeString:
    """One figure in a `<dl class="stats">`; write out the markup if you need more."""
    below = format_html('<dd class="note">{}</dd>', note) if note else ""
    return format_html('<div class="stat"><dt>{}</dt><dd>{}</dd>{}</div>', title, value, below)


@register.simple_block_tag
def table(content: str, label: str, look: str = "") -> SafeString:
    """A table that scrolls horizontally, also by keyboard; `look` is its CSS class."""
    return format_html(
        '<div class="table-wrap" tabindex="0" role="region" aria-label="{}">'
        "<table{}>{}</table></div>",
        label,
        format_html(' class="{}"', look) if look else "",
        content,
    )


@register.simple_tag
def sort_head(column: Column) -> SafeString:
    """The header cell of a column by which the list can be sorted."""
    arrow = {"ascending": "\u2191", "descending": "\u2193"}.get(column.state)
    return format_html(
        '<th scope="col"{}{}><a class="sort" href="{}">{}{}</a></th>',
        mark_safe(' class="num"') if column.numeric else "",
        format_html(' aria-sort="{}"', column.state) if arrow else "",
        column.query,
        column.title,
        format_html(' <span aria-hidden="true">{}</span>', arrow) if arrow else "",
    )


@register.simple_tag
def nothing(text: str, action: str = "", url: str = "?") -> SafeString:
    """Placeholder for an empty list: one sentence, one action."""
    button = format_html('<a class="button" href="{}">{}</a>', url, action) if action else ""
    return format_html('<div class="empty"><p>{}</p>{}</div>', text, button)


@register.simple_tag
def options(choices: Iterable[tuple[str, str]], chosen: str) -> SafeString:
    """The options of a `<select>`, from pairs of value and text, both plain."""
    # By the standard library: there are hundreds, and Django's own takes several times as long.
    found = (
        f'<option value="{escape(str(value))}"{" selected" if value == chosen else ""}>'
        f"{escape(str(text))}</option>"
        for value, text in choices
    )
    return mark_safe("".join(found))


@register.simple_block_tag
def search(content: str, label: str, words: str) -> SafeString:
    """The search form of a list; further fields go between the tags."""
    return format_html(
        '<form class="filters" method="get" role="search" data-instant><div class="field">'
        '<label class="visually-hidden" for="q">{label}</label>'
        '<input id="q" type="search" name="q" value="{words}" placeholder="{label}"></div>'
        '{content}<button class="visually-hidden" type="submit" tabindex="-1">Search</button>'
        "</form>",
        label=label,
        words=words,
        content=content,
    )


@register.simple_tag
def pick(id: object, name: str, *named: object, rows: str = "chosen") -> SafeString:
    """The cell with the checkbox that selects a row (`components/bulk.html`); `name` has a `{}` for
    each of `named`."""
    return format_html(
        '<td class="pick"><input type="checkbox" form="{}" name="row" value="{}" '
        'aria-label="Select {}"></td>',
        rows,
        id,
        name.format(*named) if named else name,
    )


@register.simple_tag
def pick_all(rows: str = "chosen") -> SafeString:
    """The header cell with the checkbox that selects all rows of the list on this page."""
    return format_html(
        '<td class="pick"><input type="checkbox" form="{}" data-all aria-label="Select all"></td>',
        rows,
    )


@register.simple_tag(takes_context=True)
def pager(context: Context, title: str, **place: object) -> SafeString | str:
    """Links from a page of a list: to its first page, and to the page after this one's last row.

    `place` is that row, under its name in the query; empty if no more rows follow.
    """
    [(name, last)] = place.items()
    query = context["request"].GET.copy()
    moved = any(query.pop(name, []))
    first = format_html('<a class="button" href="?{}">First page</a>', query.urlencode())
    query[name] = str(last)
    on = format_html('<a class="button" href="?{}">{}</a>', query.urlencode(), title)
    ways = first if moved else mark_safe("<span></span>"), on if last else ""
    return format_html('<div class="pager">{}{}</div>', *ways) if moved or last else ""


@register.simple_tag
def asks(
    verb: str,
    dialog: str,
    named: object,
    page: str,
    *of: object,
    value: object = "",
    danger: bool = False,
) -> SafeString:
    """A row's button, which opens the `dialog` that all rows share.

    The dialog shows `named` in its title and `value` in the field with `data-value`; its form posts
    to the `page` with the URL arguments `of`.
    """
    return format_html(
        '<button class="button plain{}" type="button" data-opens="{}" data-to="{}" data-named="{}"'
        '{} aria-label="{}: {}">{}</button>',
        " danger" if danger else "",
        dialog,
        address(page, *map(str, of)),
        named,
        format_html(' data-value="{}"', value) if value else "",
        verb,
        named,
        verb,
    )


@register.simple_block_tag(takes_context=True)
def dialog(
    context: Context,
    content: str,
    id: str,
    title: str,
    *named: object,
    of: object = "",
    to: str = "",
    verb: str = "Save",
    danger: bool = False,
    opened: object = False,
    sends_file: bool = False,
) -> SafeString:
    """A modal dialog with a form, which posts to the URL `to`, by default the page's own.

    `title` has a `{}` for each of `named`. A button with `data-opens` shows it. The rows of a table
    share one dialog, whose button (`asks`) sets where it posts and what the `{}` of its title is.
    If it shows more about a row, each row has a dialog of its own, identified by `of`.
    """
    return format_html(
        '<dialog id="{id}" aria-labelledby="{id}-title"{opened}>'
        '<form method="post"{action}{encoded}>{csrf}<h2 id="{id}-title">{title}</h2>{content}'
        '<div class="actions"><button class="button {look}" type="submit">{verb}</button>'
        '<button class="button plain" type="button" data-closes>Cancel</button></div>'
        "</form></dialog>",
        id=f"{id}-{of}" if of else id,
        opened=mark_safe(" open") if opened else "",
        action=format_html(' action="{}"', to) if to else "",
        encoded=mark_safe(' enctype="multipart/form-data"') if sends_file else "",
        csrf=CsrfTokenNode().render(context),
        title=format_html(title, *(named or [mark_safe("<span data-named></span>")])),
        content=content,
        look="danger" if danger else "primary",
        verb=verb,
    )
