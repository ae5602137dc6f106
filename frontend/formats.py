"""How the console writes money, numbers, durations and times: one form each.

Templates use these as filters (`frontend.templatetags.lorikeet`), views as functions;
`static/js/format.js` has the same forms for what a page's script writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe

from inference.interfaces.directory import MICRO, PICO

NONE = "\u2013"
"""Shown in place of a missing value."""
SYMBOLS = {"USD": "$", "EUR": "€", "GBP": "£"}
"""Currency signs; other currencies are written with their code."""
FEWEST_DIGITS = 2
"""Significant digits of an amount below a cent."""
UNITS = (
    ("year", 365 * 86_400, 364.5 * 86_400),
    ("month", 30 * 86_400, 29.5 * 86_400),
    ("week", 7 * 86_400, 13.5 * 86_400),
    ("day", 86_400, 23.5 * 3600),
    ("hour", 3600, 59.5 * 60),
    ("minute", 60, 30),
)
"""Units of a distance in time: their length, and the shortest distance that is written in them,
both in seconds. That is where a smaller unit would be rounded up to this one: 59.5 minutes are an
hour, not 60 minutes. Less than two weeks are written in days."""


def number(value: int | None) -> str:
    """A count, with commas for thousands: `184,302`."""
    return NONE if value is None else f"{value:,}"


def money(pico: Any) -> str:
    """A cost in pico-units: `$1,284.10`, and `$0.0031` below a cent."""
    units = Decimal(int(pico or 0)).scaleb(-12)
    if units and units < Decimal("0.01"):
        return _with_currency(_significant(units))
    return _with_currency(f"{units:,.2f}")


def cents(pico: Any) -> str:
    """As `money`, in a column of amounts of very different sizes: `<$0.01` below a cent."""
    units = Decimal(int(pico or 0)).scaleb(-12)
    return f"<{_with_currency('0.01')}" if 0 < units < Decimal("0.01") else money(pico)


def millionths(pico: Any) -> str:
    """The cost of one request in a column of such, to a millionth: `$0.000014`, `<$0.000001`."""
    units = Decimal(int(pico or 0)).scaleb(-12)
    shown = max(units, Decimal("0.000001")) if units else units
    return f"{'<' if shown > units else ''}{_with_currency(f'{shown:,.6f}')}"


def signed_money(pico: int) -> str:
    """As `money`, for an amount that may be negative."""
    return f"\u2212{money(-pico)}" if pico < 0 else money(pico)


def exact_money(pico: Any) -> str:
    """A cost in pico-units with all its decimal places, at least two."""
    return _with_currency(_at_least_two(Decimal(int(pico or 0)) / PICO))


def aligned_money(pico: Iterable[Any]) -> Callable[[Any], str]:
    """The form of the costs of a column: as `exact_money`, and all with the same number of decimal
    places, so that their points are aligned."""
    places = max((_places(Decimal(int(one or 0)) / PICO) for one in pico), default=0)
    return lambda one: _with_currency(f"{Decimal(int(one or 0)) / PICO:,.{max(places, 2)}f}")


def price(micro: int) -> str:
    """An amount in micro-units, exact: a price per million tokens, or a limit of spending."""
    return _with_currency(_at_least_two(Decimal(micro) / MICRO))


def entered(micro: int) -> str:
    """As `price`, in the format of form fields: `1284.10`."""
    return _at_least_two(Decimal(micro) / MICRO).replace(",", "")


def percent(share: float | None) -> str:
    """A share from 0 to 1 as a percentage."""
    if share is None:
        return NONE
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def points(difference: float) -> str:
    """A difference of two shares in percentage points: `+4.2`, `\u22121.5`, `0.0`."""
    text = f"{100 * abs(difference):.1f}"
    sign = "" if text == "0.0" else "\u2212" if difference < 0 else "+"
    return f"{sign}{text}"


def score(value: float | None) -> str:
    """A grade, or a mean of grades: `0.714`."""
    return NONE if value is None else f"{value:,.3f}"


def signed_score(value: float) -> str:
    """A difference of two scores: `+0.042`, `\u22120.310`, `0.000`."""
    text = f"{abs(value):,.3f}"
    sign = "" if float(text.replace(",", "")) == 0 else "\u2212" if value < 0 else "+"
    return f"{sign}{text}"


def rate(share: float | None) -> str:
    """A share from 0 to 1 that is usually small, such as of failed requests, as a percentage to
    three significant figures: `0.42%`, `12.5%`."""
    if share is None:
        return NONE
    return "<0.01%" if 0 < share < 0.00005 else f"{100 * share:.3g}%"


def aligned_rate(share: float | None) -> str:
    """As `rate`, in a column: to a hundredth of a percent."""
    if share is None:
        return NONE
    return "<0.01%" if 0 < share < 0.00005 else f"{100 * share:.2f}%"


def duration(seconds: float | None) -> str:
    """A duration, to about three significant figures."""
    if seconds is None:
        return NONE
    if seconds < 0.9995:
        return f"{seconds * 1000:.2f} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"


def seconds(value: float | None) -> str:
    """A duration in the unit that all rows of a table share: `0.182 s`, `1,312.004 s`."""
    return NONE if value is None else f"{value:,.3f} s"


def day(at: date | datetime | None) -> str:
    """`22 Nov 2026`, in the reader's time zone."""
    if at is None:
        return NONE
    local = timezone.localtime(at) if isinstance(at, datetime) else at
    return f"{local.day} {local:%b %Y}"


def month(at: datetime) -> str:
    """`November 2026`: the month of UTC, by which bills are made."""
    return f"{at.astimezone(UTC):%B %Y}"


def moment(at: datetime | None, form: str = "%H:%M") -> SafeString | str:
    """`22 Nov, 14:31`, in the reader's time zone, with the year unless it is the current one. The
    `title` attribute has the full time, also in UTC."""
    if at is None:
        return NONE
    local, now = timezone.localtime(at), timezone.localtime()
    date = f"{local.day} {local:%b}" if local.year == now.year else day(at)
    return _time(at, f"{date}, {local:{form}}")


def second(at: datetime | None) -> SafeString | str:
    """As `moment`, to the second."""
    return moment(at, "%H:%M:%S")


def lately(at: datetime) -> SafeString | str:
    """As `second`, without the day if that is today."""
    local, now = timezone.localtime(at), timezone.localtime()
    return _time(at, f"{local:%H:%M:%S}") if local.date() == now.date() else second(at)


def clock(at: datetime) -> str:
    """`14:31:58`, in the reader's time zone."""
    return f"{timezone.localtime(at):%H:%M:%S}"


def ago(at: datetime | None) -> SafeString | str:
    """The distance from now, `in 7 days` or `3 hours ago`, with the moment as its title."""
    if at is None:
        return "never"
    return _time(at, distance(at - timezone.now()))


def distance(until: timedelta) -> str:
    """A distance from now in words, rounded to one unit."""
    seconds = until.total_seconds()
    length = abs(seconds)
    for name, unit, shortest in UNITS:
        if length >= shortest:
            count = max(1, round(length / unit))
            text = f"{count} {name}{'' if count == 1 else 's'}"
            return f"in {text}" if seconds > 0 else f"{text} ago"
    return "just now"


def utc(at: datetime) -> str:
    """`22 Nov 2026, 14:31 UTC`, for plain text."""
    there = at.astimezone(UTC)
    return f"{there.day} {there:%b %Y, %H:%M} UTC"


def _time(at: datetime, text: str) -> SafeString:
    there = at.astimezone(UTC)
    title = f"{there.day} {there:%b %Y, %H:%M:%S} UTC"
    local = timezone.localtime(at)
    if local.utcoffset():
        title = f"{local.day} {local:%b %Y, %H:%M:%S}, {title}"
    # Nothing here needs escaping, which took half of the time: lists have a hundred of these.
    return mark_safe(f'<time datetime="{there.isoformat()}" title="{title}">{text}</time>')


def _significant(units: Decimal) -> str:
    places = FEWEST_DIGITS - 1 - units.adjusted()
    return f"{units:.{places}f}".rstrip("0")


def _places(units: Decimal) -> int:
    """Decimal places up to the last that is not 0."""
    return len(f"{units:f}".partition(".")[2].rstrip("0"))


def _at_least_two(units: Decimal) -> str:
    whole, _, part = f"{units:,f}".partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def _with_currency(amount: str) -> str:
    code = settings.CURRENCY.upper()
    return f"{SYMBOLS[code]}{amount}" if code in SYMBOLS else f"{code}\u00a0{amount}"
