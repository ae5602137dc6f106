"""Addresses that are as good as a password: whoever reads one in a log could use it."""

from __future__ import annotations

import re

# It begins with the one character that it can't do without: each line of the log is searched.
_TOKENS = re.compile(
    r"""(/(?:invitations/(?=[\w-]{20})"""  # shorter ones are numbers of rows
    r"""|password/reset/key/|confirm-email/))[^/\s"'?\\]+"""
)


def without_tokens(line: str) -> str:
    """A line of the log without their tokens, for `inference.logs.configure`."""
    return _TOKENS.sub(r"\1[secret]", line)
