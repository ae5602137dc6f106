"""Django's SESSION_ENGINE: sessions of people in the database, sessions of anonymous clients in a
signed cookie.

An anonymous request thus writes nothing to the database, whatever a view puts into its session. An
anonymous session holds only what its own browser may read: an invitation's token, a password
reset's key, the state of a sign-on. Its text is signed, so it cannot be changed, and expires after
ANONYMOUS_S.
"""

from __future__ import annotations

from typing import Any

from allauth.account.internal.stagekit import LOGIN_SESSION_KEY
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends import db
from django.core import signing
from django.core.exceptions import SuspiciousOperation

IDENTIFIED = (SESSION_KEY, LOGIN_SESSION_KEY, "socialaccount_sociallogin")
"""A session has one of these keys once its user is signed in, has entered the right password and is
asked for a code, or was named by the identity provider and is signing up."""
ANONYMOUS_S = 24 * 60 * 60
MAX_COOKIE_BYTES = 3800
"""Browsers drop cookies above 4 KiB, name and attributes included."""
_SALT = "frontend.sessions"


class SessionStore(db.SessionStore):
    """The text of a signed session is its key; it has a colon, which keys of rows never have."""

    def load(self) -> dict[str, Any]:
        if not _signed(self.session_key):
            return super().load()
        try:
            found: dict[str, Any] = signing.loads(
                self.session_key or "", salt=_SALT, serializer=self.serializer, max_age=ANONYMOUS_S
            )
        except signing.BadSignature:
            self._session_key = None
            return {}
        return found

    def create(self) -> None:
        """Begin a session under a new key; a row is created only for an identified user."""
        if self._identified():
            super().create()
        else:
            self._session_key = None
            self.modified = True

    def save(self, must_create: bool = False) -> None:
        """Store it where it belongs.

        Raises:
            SuspiciousOperation: an anonymous session has become too large.
        """
        if not self._identified():
            text = self._text()
            self.delete()  # the row of a pending sign-in that was given up
            self._session_key = text
            self.modified = True
        elif _signed(self.session_key):
            super().create()
        else:
            super().save(must_create)

    def delete(self, session_key: str | None = None) -> None:
        if not _signed(session_key or self.session_key):
            super().delete(session_key)

    def _identified(self) -> bool:
        return any(key in self for key in IDENTIFIED)

    def _text(self) -> str:
        text = signing.dumps(
            dict(self.items()), salt=_SALT, serializer=self.serializer, compress=True
        )
        if len(text) > MAX_COOKIE_BYTES:
            raise SuspiciousOperation(f"An anonymous session has {len(text)} bytes.")
        return text


def _signed(session_key: str | None) -> bool:
    return session_key is not None and ":" in session_key
