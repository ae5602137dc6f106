"""Strict JSON (RFC 8259), for untrusted files.

Python's own reader accepts NaN and keeps the last of two equal keys; another reader downstream
(vLLM's, in Rust or Python) might see a value other than the one that was checked.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from tenants.adapters.checks.findings import shown


class BadJson(ValueError):
    """The text is not a JSON object; the message says why."""


class DuplicateKey(BadJson):
    """An object has the same key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        again, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise DuplicateKey(f"the key {shown(again)} occurs twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise BadJson(f"{name} is not valid JSON")


def load_object(raw: bytes) -> dict[str, Any]:
    """The object that the UTF-8 text `raw` holds. Numbers such as 1e999 become infinite.

    Raises:
        DuplicateKey: a key is there twice, at any depth.
        BadJson: it is not UTF-8, not JSON, nested too deeply or not an object.
    """
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        raise BadJson(f"it is not valid UTF-8 at byte {error.start}") from None
    except BadJson:
        raise
    except RecursionError:
        raise BadJson("it is nested too deeply") from None
    except ValueError as error:
        raise BadJson(str(error)[:200]) from None
    if not isinstance(value, dict):
        raise BadJson("it is not an object")
    return value
