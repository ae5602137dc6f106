"""The hyperparameters of each method of fine-tuning: their bounds, and what `auto` means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from tenants.tuning_states import DPO, SUPERVISED

Auto = Literal["auto"]
AUTO: Auto = "auto"
ROWS_PER_STEP = 32
"""`auto`: a batch has one in so many rows, within AUTO_BATCH."""
AUTO_BATCH = (1, 8)
AUTO_EPOCHS = 3
AUTO_BETA = 0.1


class HyperparameterBounds(NamedTuple):
    least: float
    most: float


OF_ALL: Mapping[str, HyperparameterBounds] = {
    "n_epochs": HyperparameterBounds(1, 50),
    "batch_size": HyperparameterBounds(1, 256),
    "learning_rate_multiplier": HyperparameterBounds(0.0001, 1000),
}
BOUNDS: Mapping[str, Mapping[str, HyperparameterBounds]] = {
    SUPERVISED: OF_ALL,
    DPO: {**OF_ALL, "beta": HyperparameterBounds(0.001, 2)},
}


def chosen(method: str, asked: Mapping[str, Any], rows: int) -> dict[str, int | float]:
    """The numbers for a file with so many rows."""
    least, most = AUTO_BATCH
    auto: Mapping[str, int | float] = {
        "n_epochs": AUTO_EPOCHS,
        "batch_size": max(least, min(most, rows // ROWS_PER_STEP)),
        "learning_rate_multiplier": 1.0,
        "beta": AUTO_BETA,
    }
    return {name: auto[name] if asked[name] == AUTO else asked[name] for name in BOUNDS[method]}
