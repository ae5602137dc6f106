"""Loads the user of a session."""

from __future__ import annotations

from allauth.account.auth_backends import AuthenticationBackend
from django.db.models import Exists, OuterRef

from tenants.api.second_factor import factors_of
from tenants.models import User


class SessionUserBackend(AuthenticationBackend):  # type: ignore[misc]
    """Loads users in one query with whether they have a second factor, which pages ask for."""

    def get_user(self, user_id: int) -> User | None:
        users = User.objects.annotate(has_second_factor=Exists(factors_of(OuterRef("pk"))))
        user = users.filter(pk=user_id).first()
        return user if self.user_can_authenticate(user) else None
