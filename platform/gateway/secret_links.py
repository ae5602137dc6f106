"""Addresses that are as good as a password: whoever reads one in a log could use it."""

from __future__ import annotations

import re

TOKENS = re.compile(
    r"""(?<=/invitations/)[\w-]{20,}"""  # shorter ones are numbers of rows
    r"""|(?<=/password/reset/key/)[^/\s"'?\\]+"""
    r"""|(?<=/confirm-email/)[^/\s"'?\\]+"""
)
"""Their tokens, for `inference.logs.configure` to leave out."""
