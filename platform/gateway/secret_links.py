"""URLs that are as good as a password: anybody who reads one in a log could use it."""

from __future__ import annotations

import re

# Begins with a literal character for speed, because every log line is searched.
_TOKENS = re.compile(
    r"""(/(?:invitations/(?=[\w-]{20})"""  # shorter ones are row ids
    r"""|password/reset/key/|confirm-email/))[^/\s"'?\\]+"""
)


def without_tokens(line: str) -> str:
    """The log line without the tokens of such URLs, for `inference.process.logs.configure`."""
    return _TOKENS.sub(r"\1[secret]", line)
