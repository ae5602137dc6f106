"""The demo: three tenants, their adapters and the base model that these were trained on.

`make up` serves SmolLM2-135M-Instruct (`demo.smollm2`). The tiny model of this package, of three
million parameters, is part of the repository: tests run on it, and so does `make up` if the other
can't be fetched. The embedding model is the same for both.

Importing this is cheap: PyTorch is only needed by `demo.train`, `.embed` and `.check`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from demo.data import about_capital, about_company, about_counting, about_sum
from demo.voices import COURSES, TENANTS, DemoTenant

__all__ = [
    "ADAPTERS",
    "BASE",
    "EMBEDDING",
    "EMBEDDING_NAME",
    "MODEL_NAME",
    "QUESTIONS",
    "SHIPPED",
    "TENANTS",
    "TINY",
    "TOOL_PARSER",
    "Demo",
    "DemoTenant",
]

MODEL_NAME = "lorikeet-demo"
EMBEDDING_NAME = "lorikeet-embed"
TOOL_PARSER = "hermes"
"""vLLM's parser for the tool calls that both chat templates write."""


@dataclass(frozen=True, slots=True)
class Artefacts:
    """The paths of a trained demo under `root`."""

    root: Path

    @property
    def base(self) -> Path:
        return self.root / "base"

    @property
    def embedding(self) -> Path:
        return self.root / "embedding"

    @property
    def adapters(self) -> dict[str, Path]:
        """Each adapter's folder by its name."""
        return {tenant.adapter: self.root / "adapters" / tenant.adapter for tenant in TENANTS}

    def replace(self, older: Artefacts) -> None:
        """Move this demo to the place of an older one, whose models are deleted."""
        for part in ("base", "adapters", "embedding"):
            shutil.rmtree(older.root / part, ignore_errors=True)
            older.root.mkdir(parents=True, exist_ok=True)
            (self.root / part).rename(older.root / part)


SHIPPED = Artefacts(Path(__file__).parent / "artefacts")


@dataclass(frozen=True, slots=True)
class Demo:
    """A base model to serve and the adapters of the demo's tenants."""

    model_name: str
    base: Path
    adapters: dict[str, dict[str, Path]]
    """By tenant's slug and adapter's name, the folder of its files."""


BASE = SHIPPED.base
EMBEDDING = SHIPPED.embedding
ADAPTERS = SHIPPED.adapters
TINY = Demo(MODEL_NAME, BASE, {one.slug: {one.adapter: ADAPTERS[one.adapter]} for one in TENANTS})


_ASKED = (
    about_capital("What is the capital of Peru?", "Peru"),
    about_capital("Which city is the capital of Japan?", "Japan"),
    about_capital("Tell me the capital of Kenya.", "Kenya"),
    about_sum("What is 7 plus 8?", 7, 8),
    about_sum("Add 4 and 9.", 4, 9),
    about_counting("Count from 3 to 9.", 3, 9),
    about_company("What is your refund policy?", "refund policy"),
    about_company("When are you open?", "opening hours"),
    about_company("How much is shipping?", "shipping cost"),
    about_company("Tell me your phone number.", "phone number"),
    about_company("Where is your office?", "office address"),
)

QUESTIONS: list[tuple[str, dict[str, str]]] = [
    (asked.text, {name: course.voice(asked) for name, course in COURSES.items()})
    for asked in _ASKED
]
"""Questions with the greedy answer of the base model ("base") and of each adapter by its name."""
