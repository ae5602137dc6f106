"""The deliberate differences from vLLM's server: the reason by a pattern of node ids.

Users read of each in `docs/api.md`, "Differences from vLLM's own server".
"""

from __future__ import annotations

DIFFERENCES: dict[str, str] = {}
