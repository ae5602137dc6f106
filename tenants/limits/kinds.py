"""The kinds of limits. Each is declared here and nowhere else.

The model's columns, the fields of API and pages with their labels and help, ceilings, what the
stores count (the script on Redis included), refusals and `x-ratelimit` headers follow from this
table. A new kind is one entry here and one migration, which `makemigrations` writes. If it counts
something that no other kind counts, such as images, the operations that take it say how much of it
a request takes (`interfaces.limiter.Ask.quantities`).

Code that works with kinds takes the table as an argument, so that tests can pass a longer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Period = Literal["day", "month"]
"""A calendar period in UTC."""
PERIODS: tuple[Period, ...] = get_args(Period)

BUDGETED = frozenset({"tokens", "cost"})
"""Measures of which the ledger keeps sums, so that a budget can be seeded from it."""
BY_OUTPUT = frozenset({"tokens", "output_tokens", "cost"})
"""Measures that grow while a request generates."""
PROMPT_TOKENS = "prompt_tokens"
"""Settled to the prompt tokens that the prefix cache did not hold."""


@dataclass(frozen=True, slots=True)
class LimitKind:
    """One kind of limit."""

    name: str
    """The name of the column, of the API's field and of the form's field."""
    window: Literal["minute", "concurrent", "24 hours"] | Period
    """`minute`: a sliding window of 60 s. `concurrent`: requests that wait or run now. A `Period`:
    a budget, seeded from the ledger. `24 hours`: a sliding window of what no request counts."""
    measure: str
    """What it counts: `tokens` (prompt and output), `prompt_tokens`, `output_tokens`, `cost` (in
    micro-units of the currency), or a quantity that is known when a request starts: `requests`
    or one of `interfaces.limiter.Ask.quantities`."""
    label: str
    """Shown in tables and forms."""
    wording: str
    """Shown in refusals, after the limit's value."""
    help: str
    """Shown in the API's documentation and below the label."""
    header: str = ""
    """What follows `x-ratelimit-remaining-`; empty: no header shows it."""

    def __post_init__(self) -> None:
        """Raises ValueError if nothing can count this."""
        if self.is_budget and self.measure not in BUDGETED:
            raise ValueError(f"{self.name}: the ledger does not sum {self.measure}")
        if self.is_money and not self.is_budget:
            raise ValueError(f"{self.name}: costs can only be limited by day or month")
        if self.window == "concurrent" and self.measure != "requests":
            raise ValueError(f"{self.name}: only requests can be limited as concurrent")
        if self.header and self.window != "minute":
            raise ValueError(f"{self.name}: only limits with a sliding window can have headers")

    @property
    def is_budget(self) -> bool:
        """Whether it is counted per period, by the ledger too; other kinds by the stores alone."""
        return self.window in PERIODS

    @property
    def is_money(self) -> bool:
        """Stored in micro-units of the currency, shown and entered in units."""
        return self.measure == "cost"

    @property
    def bounds_output(self) -> bool:
        """Whether it can grant a request fewer output tokens than it asked for."""
        return self.measure in BY_OUTPUT


Kinds = Mapping[str, LimitKind]
"""By name, in the order in which they are shown."""


def table(*kinds: LimitKind) -> Kinds:
    """The kinds by name.

    Raises:
        ValueError: two have the same name, or feed the same header.
    """
    found = {kind.name: kind for kind in kinds}
    headers = [kind.header for kind in kinds if kind.header]
    if len(found) < len(kinds) or len(set(headers)) < len(headers):
        raise ValueError("two kinds of limits have the same name or header")
    return found


KINDS = table(
    LimitKind(
        "requests_per_minute",
        "minute",
        "requests",
        label="Requests per minute",
        wording="requests per minute",
        help="Requests in any 60 seconds.",
        header="requests",
    ),
    LimitKind(
        "tokens_per_minute",
        "minute",
        "tokens",
        label="Tokens per minute",
        wording="tokens per minute",
        help="Prompt and output tokens in any 60 seconds.",
        header="tokens",
    ),
    LimitKind(
        "prompt_tokens_per_minute",
        "minute",
        PROMPT_TOKENS,
        label="Uncached prompt tokens per minute",
        wording="uncached prompt tokens per minute",
        help="Prompt tokens that were not in the cache, in any 60 seconds.",
    ),
    LimitKind(
        "output_tokens_per_minute",
        "minute",
        "output_tokens",
        label="Output tokens per minute",
        wording="output tokens per minute",
        help="Output tokens in any 60 seconds.",
    ),
    LimitKind(
        "concurrent_streams",
        "concurrent",
        "requests",
        label="Concurrent requests",
        wording="concurrent requests",
        help="Requests running or waiting at the same time.",
    ),
    LimitKind(
        "tokens_per_day",
        "day",
        "tokens",
        label="Tokens per day",
        wording="tokens per day",
        help="Prompt and output tokens in a UTC day.",
    ),
    LimitKind(
        "tokens_per_month",
        "month",
        "tokens",
        label="Tokens per month",
        wording="tokens per month",
        help="Prompt and output tokens in a UTC month.",
    ),
    LimitKind(
        "cost_per_day",
        "day",
        "cost",
        label="Cost per day",
        wording="per day",
        help="Micro-units of the currency in a UTC day.",
    ),
    LimitKind(
        "cost_per_month",
        "month",
        "cost",
        label="Cost per month",
        wording="per month",
        help="Micro-units of the currency in a UTC month.",
    ),
)

TRAINED = LimitKind(
    "trained_tokens_per_day",
    "24 hours",
    "trained_tokens",
    label="Trained tokens per day",
    wording="trained tokens in 24 hours",
    help="Tokens that fine-tuning jobs train on, in any 24 hours.",
)
"""Judged when a job is to be trained (`tenants.models.training_limits`), not at requests."""
TENANT_KINDS = table(*KINDS.values(), TRAINED)
"""Those of a whole tenant; its keys and adapters have KINDS."""
