"""Plain values inside frames, and bounds of the numbers that engines report."""

from __future__ import annotations

from typing import Annotated

import msgspec


class Value(msgspec.Struct, array_like=True, frozen=True):
    """A plain value inside frames."""


MAX_FIGURE = 1 << 53
"""Bounds every number that an engine reports: up to here a float holds each integer exactly."""
MAX_TIME_S = 1e6
"""Longer than any request takes; a longer time in an engine's report was not measured."""

# `wire.decode` checks these. `Usage` has none of them: that of an answer is clamped, and that of a
# journal quarantined (`inference.gateway.fleet.dispatches`), because its agent would send it for
# ever.
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_FIGURE)]
Size = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
"""A count that a column of the database holds."""
Difference = Annotated[int, msgspec.Meta(ge=-MAX_FIGURE, le=MAX_FIGURE)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=MAX_FIGURE)]
"""Not negative, not infinite and not NaN."""
