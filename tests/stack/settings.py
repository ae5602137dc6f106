"""Settings of stacks that many tests share: the usual ones, except for a fast password hasher.
Hashing that is slow on purpose would take a good part of the time of each sign-in."""

from gateway.settings import *  # noqa: F403

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
